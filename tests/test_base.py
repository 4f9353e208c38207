"""The contracts: what a draft may be, how a feed and a step count, and what importing the package brings along."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from draftproof.base import ROOT, Draft, Feed, Kind, Step, Verdict, token_key

ROW = np.array([0.5, 0.5])


def draft(**changes) -> Draft:
    good = {
        "root": 3,
        "tokens": (1, 0),
        "parents": (ROOT, 0),
        "kind": (Kind.SAMPLED, Kind.CHOSEN),
        "origin": ("a", "b"),
        "rows": (ROW,),
        "row_of": (0, -1),
    }
    return Draft(**{**good, **changes})


def test_a_draft_that_is_whole_is_taken():
    assert len(draft()) == 2
    assert len(Draft(0)) == 0


@pytest.mark.parametrize("field", ["parents", "kind", "origin", "row_of"])
def test_every_node_needs_all_of_its_fields(field: str):
    short = getattr(draft(), field)[:1]
    with pytest.raises(ValueError, match="2 tokens need as many"):
        draft(**{field: short})


@pytest.mark.parametrize("parents", [(0, 0), (ROOT, 1), (ROOT, 2), (-2, 0)])
def test_parents_precede_their_children(parents: tuple[int, int]):
    with pytest.raises(ValueError, match="parents precede their children"):
        draft(parents=parents)


@pytest.mark.parametrize("row", [-1, 1])
def test_a_sampled_token_needs_the_law_it_was_drawn_from(row: int):
    with pytest.raises(ValueError, match="sampled node 0 has no law"):
        draft(row_of=(row, -1))


def test_a_chosen_token_has_no_law_even_where_a_row_is_recorded():
    assert draft().law(0) is ROW
    assert draft().law(1) is None
    assert draft(row_of=(0, 0)).law(1) is None
    assert draft(kind=(Kind.COUPLED, Kind.CHOSEN)).law(0) is ROW


def test_a_chain_is_a_tree_without_forks():
    chain = Draft.chain(5, [7, 8, 9], Kind.SAMPLED, "m", [ROW, ROW, ROW])
    assert chain.parents == (-1, 0, 1)
    assert chain.row_of == (0, 1, 2)
    assert (chain.kind, chain.origin) == ((Kind.SAMPLED,) * 3, ("m",) * 3)
    assert Draft.chain(5, [7, 8]).row_of == (-1, -1)
    assert len(Draft.chain(5, [])) == 0


@pytest.mark.parametrize(
    ("tokens", "parents", "want", "committed", "wanted"),
    [
        ((5,), (), None, 1, (0,)),  # the pending token alone
        ((5, 1, 2), (-1, 0), None, 1, (0, 1, 2)),  # and a draft
        ((4, 5, 1, 2), (-1, -1), None, 2, (1, 2, 3)),  # two committed rows, a tree
        ((4, 5, 6), (), (), 3, ()),  # a prompt whose logits nobody needs
        ((4, 5, 6), (), (1,), 3, (1,)),
    ],
)
def test_a_feed_wants_the_last_committed_row_and_the_draft(tokens, parents, want, committed, wanted):
    feed = Feed(None, tokens, parents, want)
    assert (feed.committed, feed.wanted) == (committed, wanted)


@pytest.mark.parametrize(
    ("path", "tokens", "last", "kept", "accepted", "bonus"),
    [
        ((0, 1), (7, 8, 9), "bonus", 3, 2, 1),
        ((0, 1), (7, 8, 9), "bonus", 2, 2, 0),  # cut before the bonus
        ((0, 1), (7, 8, 9), "bonus", 1, 1, 0),  # cut inside the draft
        ((0,), (7, 5), "replacement", 2, 1, 0),
        ((0,), (7, 5), "replacement", 1, 1, 0),
        ((), (5,), "replacement", 1, 0, 0),
        ((), (5,), "target", 1, 0, 0),
        ((0, 1), (7, 8), None, 2, 2, 0),  # a rule without a final token
    ],
)
def test_a_step_counts_what_was_committed(path, tokens, last, kept, accepted, bonus):
    step = Step(Draft.chain(4, (7, 8)), Verdict(path, tokens, last), tokens[:kept])
    assert (step.accepted, step.bonus) == (accepted, bonus)


def test_a_chosen_node_has_no_law_whatever_rows_the_draft_holds():
    row = np.full(3, 1 / 3)
    kinds = (Kind.CHOSEN, Kind.SAMPLED)
    draft = Draft(1, (0, 1), (-1, 0), kinds, ("",) * 2, (row,), (0, 0))
    assert draft.law(0) is None
    assert draft.law(1) is row


def test_coupled_noise_is_the_same_for_every_node_at_a_position():
    assert token_key(7) == token_key(7)
    assert token_key(7) != token_key(8)


LIGHT = ["base", "chance", "laws", "trees", "sampling", "rules", "drafters", "control", "commit", "loop"]
LIGHT += ["audit.prove", "models.table", "arrays", "theory"]


@pytest.mark.parametrize("names", [["draftproof"], [f"draftproof.{name}" for name in LIGHT]], ids=["package", "core"])
def test_the_core_imports_neither_torch_nor_transformers(names: list[str]):
    code = f"import sys, {', '.join(names)}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
