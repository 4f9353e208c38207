"""Bad input and broken models: one clear line that names the argument, the value and what would be right.

The shape checks of the other tests would catch a wrong type before the product does, so they are off here.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.base import Feed, Scores
from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from tests.folders import make_folder

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return LLM(str(make_folder(tmp_path_factory.mktemp("model"))), dtype="float32")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda llm: llm.encode(""), "prompt: it is empty"),
        (lambda llm: llm.encode("x", system="s", raw=True), "system: 's' cannot be used"),
        (lambda llm: llm.start([1] * 512), "512 tokens leave no room in the model's context of 512"),
        (lambda llm: llm.speculating({"metod": "ngram"}), "unknown key 'metod'; known are method"),
        (lambda llm: llm.speculating({"method": "eagle"}), "'eagle' is unknown; known are auto, ngram"),
        (
            lambda llm: llm.speculating({"method": "draft_model"}),
            "model: None is not allowed; method 'draft_model'",
        ),
        (lambda llm: llm.speculating({"verify": "typical"}), "'typical' is unknown; known are coupled"),
        (lambda llm: llm.speculating({"verify": ["token"]}), "verify: ['token'] is not allowed"),
        (lambda llm: llm.speculating({"num_speculative_tokens": 10**9}), "it must be a whole number in 0 .. 1024"),
        (lambda llm: llm.speculating({"method": "ngram", "model": "x"}), "not used by method 'ngram'"),
        (lambda llm: llm.speculating({"num_speculative_tokens": -1}), "num_speculative_tokens: -1"),
        (lambda llm: SamplingParams(top_p=0.0), "top_p: 0.0 is not allowed; it must be a number in (0, 1]"),
        (lambda llm: SamplingParams(temperature=float("nan")), "temperature: nan"),
        (lambda llm: SamplingParams(temperature="0.7"), "temperature: '0.7'"),
        (lambda llm: SamplingParams(top_k=2.5), "top_k: 2.5 is not allowed; it must be a whole number"),
        (lambda llm: SamplingParams(max_tokens=True), "max_tokens: True"),
        (lambda llm: SamplingParams(seed=2**64), "seed: 18446744073709551616"),
        (lambda llm: SamplingParams(stop=(b"x",)), "stop: b'x'"),
        (lambda llm: SamplingParams(stop_token_ids=("5",)), "stop_token_ids: '5'"),
        (lambda llm: llm.speculating({"num_speculative_tokens": "5"}), "num_speculative_tokens: '5'"),
        (lambda llm: llm.speculating({"prompt_lookup_min": 0}), "prompt_lookup_min: 0"),
        (lambda llm: llm.speculating({"prompt_lookup_min": 9}), "prompt_lookup_max: 4"),
        (lambda llm: llm.speculating("ngram"), "speculative_config: 'ngram' is not allowed; it must be a mapping"),
        (lambda llm: llm.start([]), "prompt: it has no tokens"),
        (lambda llm: llm.start([999]), "prompt: 999 is not allowed; it must be a whole number in 0 .. 256"),
        (lambda llm: llm.encode(5), "prompt: 5 is not allowed; it must be a string"),
        (lambda llm: llm.encode("a\udcff"), "prompt: it is not valid Unicode text at character 1"),
    ],
)
def test_bad_input_is_one_clear_line(plain, make, words):
    with pytest.raises(ValueError, match=r"^\w+: .+") as caught:
        make(plain)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def no_numbers(feeds: Sequence[Feed]) -> list[Scores]:
    """A forward whose logits are all NaN."""
    for feed in feeds:
        feed.session.feed = feed.session.cache.wrote = feed
    return [Scores(np.full((len(feed.wanted), 257), np.nan, np.float32)) for feed in feeds]


@pytest.mark.usefixtures("unchecked")
def test_a_draft_that_breaks_is_named(plain, other, monkeypatch):
    fast = plain.speculating({"method": "draft_model", "model": str(other), "num_speculative_tokens": 5})
    monkeypatch.setattr(fast.drafting.draft.target, "forward", no_numbers)
    with pytest.raises(ValueError, match=r"^draft model .*position 4: logits: .* nan"):
        fast.start([1, 2, 3, 4], SamplingParams(seed=3, max_tokens=60)).result()


def test_a_request_that_failed_does_not_pretend_to_have_ended(plain, monkeypatch):
    request = plain.start([1, 2, 3], SamplingParams(seed=3, max_tokens=60))
    with monkeypatch.context() as patch:
        patch.setattr(plain.loaded.target, "forward", no_numbers)
        with pytest.raises(ValueError, match=r"^position 3: logits"):
            request.result()
    with pytest.raises(RuntimeError, match="interrupted or failed"):
        request.result()
