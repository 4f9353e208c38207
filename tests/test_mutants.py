"""The proof must be able to fail: each known fault deviates from the target's law, and its correct form does not.

Run with -s to read the exact deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from draftproof.audit.exact import EnumeratedChance, LoopCase, deviation, emitted_law, target_law
from draftproof.base import Chance, Draft, Drafter, Key, Kind, Purpose, Row, Rule, Verdict, token_key
from draftproof.control import Fixed
from draftproof.drafters import ModelDrafter
from draftproof.laws import acceptance, one_hot, residual, without
from draftproof.models.table import TableTarget
from draftproof.rules import block, coupled, token
from tests.toys import WITNESS, Chooser, Edited, argmax

pytestmark = pytest.mark.usefixtures("unchecked")

V = 3
P, Q = WITNESS
Rekey = Callable[[Key], Key]


# -- drafters


def drawn(kind: Kind = Kind.SAMPLED) -> Drafter:
    return ModelDrafter(TableTarget(Q, V), kind)


def greedy(soft: bool) -> Drafter:
    """Always the draft model's argmax; soft: its law is passed off as the one the token was drawn from."""
    return Chooser(lambda history: argmax(Q(history)), Q if soft else None)


def recorded_colder(draft: Draft) -> Draft:
    """Claims the law at half the temperature: what recomputing q with other settings does."""
    return replace(draft, rows=tuple(row**2 / (row**2).sum() for row in draft.rows))


def stop_at(doubtful: Callable[[Draft, int], bool]) -> Callable[[Draft], Draft]:
    """Cuts the draft at the first doubtful node, which goes too."""

    def edit(draft: Draft) -> Draft:
        n = next((node for node in range(len(draft)) if doubtful(draft, node)), len(draft))
        return Draft.chain(draft.root, draft.tokens[:n], Kind.SAMPLED, "model", draft.rows[:n])

    return edit


def unlikely_token(draft: Draft, node: int) -> bool:
    return draft.rows[node][draft.tokens[node]] < Fraction(1, 3)


def unsure_law(draft: Draft, node: int) -> bool:
    return max(draft.rows[node]) < Fraction(1, 2)


def as_sampled(draft: Draft) -> Draft:
    return replace(draft, kind=(Kind.SAMPLED,) * len(draft))


# -- noise


class Rekeyed:
    """A chance whose keys are changed before they reach the noise."""

    def __init__(self, chance: Chance, rekey: Rekey) -> None:
        self._chance, self._rekey = chance, rekey

    def uniform(self, key: Key):
        return self._chance.uniform(self._rekey(key))

    def coin(self, prob, key: Key) -> bool:
        return self._chance.coin(prob, self._rekey(key))

    def pick(self, weights: Row, key: Key, k: int = 1) -> tuple[int, ...]:
        return self._chance.pick(weights, self._rekey(key), k)


def rekeyed(rule: Rule, rekey: Rekey) -> Rule:
    return lambda draft, rows, chance: rule(draft, rows, Rekeyed(chance, rekey))


class RekeyedDrafter(Edited):
    def __init__(self, drafter: Drafter, rekey: Rekey) -> None:
        super().__init__(drafter, lambda draft: draft)
        self._rekey = rekey

    def propose(self, sessions, plans, chances) -> list[Draft]:
        return super().propose(sessions, plans, [Rekeyed(chance, self._rekey) for chance in chances])


def position_alone(key: Key) -> Key:
    return key if key.purpose is Purpose.REPLACE else Key(0, key.root + key.depth, key.purpose)


def coin_with_the_replacement(key: Key) -> Key:
    return Key(key.root, key.depth, Purpose.REPLACE)


def one_coin(key: Key) -> Key:
    return Key(key.root, 0, Purpose.ACCEPT) if key.purpose is Purpose.ACCEPT else key


def shared_noise(key: Key) -> Key:
    return token_key(key.root + key.depth)


# -- rules


def token_like(
    accept: Callable[..., Fraction] = lambda p, q, x: acceptance(p[x], q[x]),
    rest: Callable[..., Row] = lambda p, q, x: residual(p, q),
    bonus: Callable[..., Row] = lambda p, q: p,
) -> Rule:
    """Token verification of sampled drafts with its three laws laid open."""

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        for i, x in enumerate(draft.tokens):
            p, q = rows[i], draft.law(i)
            if not chance.coin(accept(p, q, x), Key(draft.root, i, Purpose.ACCEPT, i)):
                (y,) = chance.pick(rest(p, q, x), Key(draft.root, i, Purpose.REPLACE))
                return Verdict(tuple(range(i)), (*draft.tokens[:i], y), "replacement")
        n = len(draft)
        law = bonus(rows[n], draft.law(n - 1)) if n else rows[0]
        (y,) = chance.pick(law, Key(draft.root, n, Purpose.REPLACE))
        return Verdict(tuple(range(n)), (*draft.tokens, y), "bonus" if n else "target")

    return rule


def block_like(first_failure_ends: bool = False, weighted: bool = True) -> Rule:
    """Block verification of sampled drafts, plainly: every coin is drawn, from the first on."""

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        n, weight = len(draft), [Fraction(1)]
        for i, x in enumerate(draft.tokens):
            weight.append(acceptance(weight[i] * rows[i][x], draft.law(i)[x]))

        def passes(i: int) -> Fraction:
            if i == n:
                return weight[n]
            rest = residual(rows[i], draft.law(i), weight[i]).sum()
            return rest / (rest + 1 - weight[i]) if rest + 1 - weight[i] else Fraction(1)

        coins = [chance.coin(passes(i), Key(draft.root, i - 1, Purpose.ACCEPT, i - 1)) for i in range(1, n + 1)]
        if first_failure_ends:
            kept = coins.index(False) if False in coins else n
        else:
            kept = max((i for i in range(1, n + 1) if coins[i - 1]), default=0)
        law = rows[n] if kept == n else residual(rows[kept], draft.law(kept), weight[kept] if weighted else Fraction(1))
        (y,) = chance.pick(law, Key(draft.root, kept, Purpose.REPLACE))
        return Verdict(tuple(range(kept)), (*draft.tokens[:kept], y), "replacement" if kept < n else "bonus")

    return rule


def without_bonus(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    verdict = token(draft, rows, chance)
    return replace(verdict, tokens=verdict.tokens[:-1], last=None) if verdict.last == "bonus" else verdict


# -- the list


@dataclass(frozen=True)
class Mutant:
    """A fault as (rule, drafter), and the correct form it departs from."""

    name: str
    faulty: tuple[Rule, Callable[[], Drafter]]
    correct: tuple[Rule, Callable[[], Drafter]] = (token, drawn)


MUTANTS = [
    Mutant("block, accept noise by position alone", (rekeyed(block, position_alone), drawn), (block, drawn)),
    Mutant(
        "block, draft noise by position alone",
        (block, lambda: RekeyedDrafter(drawn(), position_alone)),
        (block, drawn),
    ),
    Mutant("block, the first failure ends", (block_like(first_failure_ends=True), drawn), (block_like(), drawn)),
    Mutant("block, residual of the whole p", (block_like(weighted=False), drawn), (block_like(), drawn)),
    Mutant("one noise for coin and replacement", (rekeyed(token, coin_with_the_replacement), drawn)),
    Mutant("one coin for the whole chain", (rekeyed(token, one_coin), drawn)),
    Mutant("q recorded at another temperature", (token, lambda: Edited(drawn(), recorded_colder))),
    Mutant("block, q recorded at another temperature", (block, lambda: Edited(drawn(), recorded_colder))),
    Mutant(
        "a sampled token dropped by its value",
        (token, lambda: Edited(drawn(), stop_at(unlikely_token))),
        (token, lambda: Edited(drawn(), stop_at(unsure_law))),
    ),
    Mutant("soft q on argmax drafts", (token, lambda: greedy(soft=True)), (token, lambda: greedy(soft=False))),
    Mutant("block, soft q on argmax drafts", (block, lambda: greedy(soft=True)), (block, lambda: greedy(soft=False))),
    Mutant("replacement from p", (token_like(rest=lambda p, q, x: p), drawn), (token_like(), drawn)),
    Mutant("replacement from |p - q|", (token_like(rest=lambda p, q, x: abs(p - q)), drawn), (token_like(), drawn)),
    Mutant(
        "replacement by the argmax of the residual",
        (token_like(rest=lambda p, q, x: one_hot(argmax(residual(p, q)), V)), drawn),
        (token_like(), drawn),
    ),
    Mutant(
        "replacement without the drafted token only",
        (token_like(rest=lambda p, q, x: without(p, x)), drawn),
        (token_like(), drawn),
    ),
    Mutant("bonus from q", (token_like(bonus=lambda p, q: q), drawn), (token_like(), drawn)),
    Mutant(
        "coupled noise under u < p/q",
        (rekeyed(token, shared_noise), lambda: Edited(drawn(Kind.COUPLED), as_sampled)),
        (coupled, lambda: drawn(Kind.COUPLED)),
    ),
    Mutant(
        "accepted if it is the argmax",
        (token_like(accept=lambda p, q, x: Fraction(x == argmax(p))), drawn),
        (token_like(), drawn),
    ),
    Mutant(
        "lenience 3/2",
        (token_like(accept=lambda p, q, x: acceptance(p[x] * Fraction(3, 2), q[x])), drawn),
        (token_like(), drawn),
    ),
    Mutant(
        "p/(q + 1e-10)",
        (token_like(accept=lambda p, q, x: acceptance(p[x], q[x] + Fraction(1, 10**10))), drawn),
        (token_like(), drawn),
    ),
]


def deviation_of(rule: Rule, drafter: Callable[[], Drafter]) -> Fraction:
    """Two drafted tokens, three emitted: a rejection makes a second round."""
    case = LoopCase(P, lambda: TableTarget(P, V), drafter, Fixed(2), rule, max_tokens=3)
    return deviation(emitted_law(case), target_law(case))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fault_is_seen_and_its_correct_form_passes(mutant: Mutant):
    found = deviation_of(*mutant.faulty)
    print(f"\n{mutant.name:45} {float(found):.2e} = {found}", end=" ")
    assert found > 0
    assert deviation_of(*mutant.correct) == 0


def test_the_chain_rules_refuse_drafts_that_share_the_targets_noise():
    for rule in (token, block):
        with pytest.raises(ValueError, match="coupled rule"):
            deviation_of(rule, lambda: drawn(Kind.COUPLED))


def test_a_rule_without_the_bonus_is_lossless_and_merely_slow():
    assert deviation_of(without_bonus, drawn) == 0
    only = one_hot(0, 1)
    draft = Draft.chain(1, (0, 0), Kind.SAMPLED, rows=(only, only))
    certain = EnumeratedChance([])
    quick, slow = (rule(draft, (only, only, only), certain) for rule in (token, without_bonus))
    assert (len(quick.tokens), len(slow.tokens)) == (3, 2)
