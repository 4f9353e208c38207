"""That training and drafting agree: an unroll is what drafting does, from every place of a text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from draftproof.models.eagle import EagleConfig, EagleHead
from draftproof.train import unroll as unrolling
from draftproof.train.attention import attend_dense, attend_flash
from draftproof.train.batches import Batch, Span, States, Text, batch_of, spans_of
from draftproof.train.unroll import unroll

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB, SIZE, STEPS = 40, 16, 4
MASKS = "aaaaaaaaa", "aaaa", "a", "pppppppaaapppppaa", "aa"
"""What of each text is an answer: of the fourth what is said in two turns."""
SPANS = Span(0, 0, 7), Span(9, 9, 11), Span(14, 16, 22), Span(14, 24, 29)
"""Rows that count at some step: of the fourth text those from which an answer is at most so many tokens away."""


def head_of(norm_before_residual: bool = True, dtype: torch.dtype = torch.float64) -> EagleHead:
    layer = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=SIZE,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    head = EagleHead(EagleConfig(layer, 12, (0, 1, 2), norm_before_residual), torch.arange(0, 36, 3)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=dtype), alpha=0.4)
    return head.eval()


def texts_of() -> list[Text]:
    generator = torch.Generator().manual_seed(1)
    return [
        Text(
            str(i),
            str(i),
            tuple(torch.randint(VOCAB, (len(mask),), generator=generator).tolist()),
            tuple(each == "a" for each in mask),
        )
        for i, mask in enumerate(MASKS)
    ]


def states_of(text: Text) -> States:
    generator = torch.Generator().manual_seed(int(text.id))
    n = len(text.tokens)
    features, last = (torch.randn(n, wide, generator=generator, dtype=torch.float64) for wide in (3 * SIZE, SIZE))
    return States(features, last, torch.zeros(n), torch.arange(n))


def table() -> torch.Tensor:
    return torch.randn(VOCAB, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def batch() -> Batch:
    return batch_of(texts_of(), states_of, STEPS)


class Drafting:
    """One text's entries, read one by one as a drafter does: true states first, then its own outputs."""

    def __init__(self, head: EagleHead) -> None:
        self.head, self.seen = head, []

    def read(self, embed: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """One more entry, at the next position: what the head says there."""
        rotations = self.head.rotations(torch.tensor([len(self.seen)]))
        q, k, v, residual = self.head.attended(embed[None, None], hidden[None, None], rotations)
        self.seen.append((k[0, :, 0], v[0, :, 0]))
        heads = []
        for at in range(q.shape[1]):
            own = at // (q.shape[1] // k.shape[1])
            scores = torch.stack([q[0, at, 0] @ key[own] for key, _ in self.seen]) / math.sqrt(q.shape[-1])
            heads.append(sum(w * value[own] for w, (_, value) in zip(scores.softmax(0), self.seen, strict=True)))
        return self.head.finished(torch.stack(heads)[None, None], residual)[0, 0]


def drafted(head: EagleHead, text: Text, place: int) -> list[torch.Tensor]:
    """What the head says when it has read the target's states up to `place`, and goes on alone, fed the text."""
    drafting, features, embeddings = Drafting(head), states_of(text).features, table()
    for at in range(place + 1):
        said = drafting.read(embeddings[text.tokens[at + 1]], head.fuse(features[at]))
    found = [said]
    for token in text.tokens[place + 2 : place + 1 + STEPS]:
        found.append(drafting.read(embeddings[token], found[-1]))
    return found


def furthest(head: EagleHead) -> float:
    """The largest difference of an unroll from drafting, over all its rows and steps."""
    given, off = batch(), 0.0
    outputs = list(unroll(head, table(), given, STEPS))
    of = [text for text in texts_of() for _ in text.tokens]
    for at, row in enumerate(given.unrolled.tolist()):
        for k, wanted in enumerate(drafted(head, of[row], int(given.places[row]))):
            off = max(off, float((outputs[k][at] - wanted).abs().max()))
    return off


def test_what_is_unrolled_by_hand():
    given = batch()
    assert given.spans == SPANS
    assert given.unrolled.tolist() == [row for span in SPANS for row in range(span.first, span.end)]
    counted = {row for rows in given.rows for row in given.unrolled[rows].tolist()}
    assert counted == set(given.unrolled.tolist())


def test_nothing_is_unrolled_where_nothing_counts():
    assert spans_of(torch.tensor([], dtype=torch.int64), torch.arange(4)) == ()


@pytest.mark.parametrize("norm_before_residual", [True, False])
@torch.no_grad()
def test_an_unroll_is_drafting_from_every_place(norm_before_residual):
    assert furthest(head_of(norm_before_residual)) < 1e-12


@torch.no_grad()
def test_the_comparison_sees_wrong_positions(monkeypatch):
    head = head_of()
    positions = iter(range(1, 2 * STEPS))
    right = head.rotations
    monkeypatch.setattr(head, "rotations", lambda at: right(at + (next(positions) > 1) if len(at) > 1 else at))
    assert furthest(head) > 1e-3


@torch.no_grad()
def test_the_comparison_sees_a_missing_own_key(monkeypatch):
    monkeypatch.setattr(unrolling, "attend", lambda q, steps, spans: attend_flash(q, steps[:2], spans))
    assert furthest(head_of()) > 1e-3


@torch.no_grad()
def test_documents_do_not_see_each_other():
    head, together = head_of(), batch()
    outputs = list(unroll(head, table(), together, STEPS))
    lo = 0
    for text in (text for text in texts_of() if text.counts):
        alone = batch_of([text], states_of, STEPS)
        sure = [place + 1 for place in alone.unrolled.tolist()]
        for k, (all_rows, own) in enumerate(zip(outputs, unroll(head, table(), alone, STEPS), strict=True)):
            inside = [at for at, place in enumerate(sure) if place + k < len(text.tokens)]
            both = all_rows[[lo + at for at in inside]], own[inside]
            torch.testing.assert_close(*both, rtol=0, atol=1e-12)
        lo += len(sure)
    assert lo == len(together.unrolled)


def test_rows_and_laws_that_count_by_hand():
    """Tokens a b | c d e f g, of which d, f and g are labels."""
    texts = [
        replace(texts_of()[0], tokens=(1, 2), labels=(True, True)),
        replace(texts_of()[1], tokens=(3, 4, 5, 6, 7), labels=(False, True, False, True, True)),
    ]
    found = batch_of(texts, states_of, 3)
    assert found.places.tolist() == [0, 1, 0, 1, 2, 3, 4]
    # flat places: c 2, d 3, e 4, f 5, g 6; the laws of f and g stand after e (4) and f (5)
    assert found.top.tolist() == [2, 3]  # states_of numbers them within the document
    assert found.unrolled.tolist() == [2, 3, 4]
    assert [rows.tolist() for rows in found.rows] == [[1, 2], [0, 1], [0]]
    assert [laws.tolist() for laws in found.laws] == [[0, 1], [0, 1], [1]]


def random_attention(own: int, spans: tuple[Span, ...], n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = sum(span.end - span.first for span in spans)
    shapes = [(1, 4, rows, 8), *[(1, 2, n, 8)] * 2, *[(1, 2, rows, 8)] * (2 * own)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("own", [0, 1, 3])
def test_both_ways_of_attention_agree_and_so_do_their_gradients(own):
    given = random_attention(own, SPANS, sum(map(len, MASKS)))
    weights = torch.randn(given[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    results = []
    for attend in (attend_dense, attend_flash):
        steps = list(zip(given[1::2], given[2::2], strict=True))
        found = attend(given[0], steps, SPANS)
        results.append([found, *torch.autograd.grad((found.transpose(1, 2) * weights).sum(), given)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_gradient_of_flash_attention_is_that_of_its_definition():
    spans = Span(0, 0, 2), Span(2, 3, 5), Span(2, 6, 7)
    given = random_attention(2, spans, 8)
    torch.autograd.gradcheck(
        lambda q, *rest: attend_flash(q, list(zip(rest[::2], rest[1::2], strict=True)), spans), given
    )
