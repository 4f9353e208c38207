"""Statistics are counted events; a rate without a denominator is None."""

from draftproof.base import Draft, Step, Verdict
from draftproof.stats import Stats


def stats_of(*steps: Step) -> Stats:
    stats = Stats()
    for step in steps:
        stats.add(step)
    return stats


FULL = Step(Draft.chain(4, [1, 2, 3]), Verdict((0, 1, 2), (1, 2, 3, 9), "bonus"), (1, 2, 3, 9), {"forward": 2.0})
CUT = Step(Draft.chain(8, [1, 2, 3]), Verdict((0, 1, 2), (1, 2, 3, 9), "bonus"), (1, 2), {"forward": 1.0})
REJECTED = Step(Draft.chain(8, [1, 2]), Verdict((0,), (1, 7), "replacement"), (1, 7))
PLAIN = Step(Draft(9), Verdict((), (5,), "target"), (5,))


def test_a_round_that_accepts_everything_has_a_bonus():
    stats = stats_of(FULL)
    assert (stats.drafts, stats.drafted, stats.accepted, stats.bonus, stats.emitted) == (1, 3, 3, 1, 4)
    assert stats.acceptance_length == 4
    assert stats.acceptance_rate == 1


def test_what_was_cut_away_is_not_accepted():
    stats = stats_of(CUT)
    assert (stats.drafted, stats.accepted, stats.bonus, stats.emitted) == (3, 2, 0, 2)
    assert stats.drafted_per_position == [1, 1, 1]
    assert stats.accepted_per_position == [1, 1, 0]


def test_counts_by_depth_add_up():
    stats = stats_of(FULL, REJECTED, PLAIN)
    assert stats.drafted_per_position == [2, 2, 1]
    assert stats.accepted_per_position == [2, 1, 1]
    assert sum(stats.accepted_per_position) == stats.accepted
    assert stats.rounds == 3
    assert stats.drafts == 2


def test_nothing_drafted_is_none_and_not_zero():
    stats = stats_of(PLAIN)
    assert stats.acceptance_length is None
    assert stats.acceptance_rate is None
    assert Stats().tokens_per_pass is None
    assert Stats().tokens_per_second is None


def test_seconds_add_up_and_load_is_not_in_the_total():
    stats = stats_of(FULL, CUT)
    stats.seconds["load"] = 100.0
    assert stats.seconds["forward"] == stats.seconds["total"] == 3.0
    assert stats.tokens_per_second == 6 / 3
