"""Statistics are counted events; a rate without a denominator is None."""

from draftproof.base import Draft, Kind, Step, Verdict
from draftproof.stats import Stats, together


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


ONE = Step(Draft.chain(4, [1]), Verdict((0,), (1, 9), "bonus"), (1, 9))
REFUSED = Step(Draft.chain(4, [1, 2]), Verdict((), (7,), "replacement"), (7,))


def shares(stats: Stats) -> list[tuple[int, float | None]]:
    return [(each.reached, each.conditional) for each in stats.positions]


def test_a_depth_is_reached_by_rounds_that_accepted_all_before_it_and_drafted_there():
    """Ten rounds accept the one token they draft, ten refuse the first of two: nobody was asked about a second."""
    stats = stats_of(*[ONE] * 10, *[REFUSED] * 10)
    assert (stats.drafted_per_position, stats.accepted_per_position) == ([20, 10], [10, 0])
    assert stats.reached_per_position == [20, 0]
    assert shares(stats) == [(20, 1 / 2), (0, None)]
    assert [each.marginal for each in stats.positions] == [1 / 2, 0]


def test_what_was_cut_away_was_not_reached():
    assert stats_of(CUT).reached_per_position == [1, 1, 0]
    refusal_cut = Step(REJECTED.draft, REJECTED.verdict, REJECTED.tokens[:1])
    assert stats_of(refusal_cut).reached_per_position == [1, 0]
    assert stats_of(REJECTED).reached_per_position == [1, 1]


def test_in_a_tree_a_depth_is_reached_below_what_was_accepted_alone():
    """Of two siblings the first has a child: who accepts the second has reached nothing beyond it."""
    tree = Draft(4, (1, 2, 3), (-1, -1, 0), (Kind.CHOSEN,) * 3, ("",) * 3, row_of=(-1,) * 3)
    childless = Step(tree, Verdict((1,), (2, 9), "bonus"), (2, 9))
    below = Step(tree, Verdict((0,), (1, 9), "replacement"), (1, 9))
    assert stats_of(childless).reached_per_position == [1, 0]
    assert stats_of(below).reached_per_position == [1, 1]
    assert stats_of(childless, below).drafted_per_position == [4, 2]


def test_reached_rounds_add_up_over_requests_and_survive_a_file():
    stats = together([stats_of(FULL), stats_of(REJECTED, PLAIN)])
    assert stats.reached_per_position == [2, 2, 1]
    assert Stats.of(stats.as_dict()) == stats


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
