"""Shape annotations are checked while the tests run: the hook must be in place before the package is imported."""

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

# the numeric tower: an int is a float, as for every static type checker
install_import_hook("draftproof", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

settings.register_profile("draftproof", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("draftproof")


@pytest.fixture
def unchecked():
    """Suspends the shape checks: an enumeration of thousands of decodes would spend nine tenths of its time in them."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
