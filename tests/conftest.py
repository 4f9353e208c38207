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


@pytest.fixture(scope="module")
def one_thread():
    """For models so small that they lose more to waiting for a second thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def drafted(monkeypatch) -> list[int]:
    """How many tokens were drafted in each round, as a Hugging Face target saw them."""
    from draftproof.models.hf import HFTarget

    seen: list[int] = []
    forward = HFTarget.forward

    def spy(self, feeds):
        seen.extend(len(feed.parents) for feed in feeds if feed.wanted)
        return forward(self, feeds)

    monkeypatch.setattr(HFTarget, "forward", spy)
    return seen
