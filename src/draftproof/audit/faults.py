"""The parts that mutants are made of: noise used twice, rules with one wrong law, drafts that were looked at.

The `*_like` functions are second, plainer writings of the rules, correct by default and wrong in the point asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp

import numpy as np

from ..base import ROOT, Chance, Draft, Drafter, Key, Kind, Purpose, Row, Rule, Verdict, token_key
from ..drafters import ModelDrafter
from ..laws import acceptance, one_hot, residual, total
from ..models.table import TableTarget
from ..rules import coupled, token
from ..trees import children
from . import toys
from .toys import Edited, Pair, argmax

Rekey = Callable[[Key], Key]


# -- noise used twice


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


def redrawn(make: Callable[[Pair], Drafter], rekey: Rekey) -> Callable[[Pair], Drafter]:
    return lambda pair: Edited(make(pair), chance=lambda chance: Rekeyed(chance, rekey))


def position_alone(key: Key) -> Key:
    return key if key.purpose is Purpose.REPLACE else Key(0, key.root + key.depth, key.purpose)


def position_and_node(key: Key) -> Key:
    return Key(0, key.root + key.depth, key.purpose, key.node) if key.purpose is Purpose.ACCEPT else key


def replacement_with_the_coin(key: Key) -> Key:
    return key._replace(purpose=Purpose.ACCEPT, node=key.depth) if key.purpose is Purpose.REPLACE else key


def replacement_with_the_draft(key: Key) -> Key:
    return key._replace(purpose=Purpose.DRAFT, node=key.depth) if key.purpose is Purpose.REPLACE else key


def one_coin_a_chain(key: Key) -> Key:
    return Key(key.root, 0, Purpose.ACCEPT) if key.purpose is Purpose.ACCEPT else key


def one_coin_a_depth(key: Key) -> Key:
    return key._replace(node=0) if key.purpose is Purpose.ACCEPT else key


def one_coin_for_cousins(key: Key) -> Key:
    return one_coin_a_depth(key) if key.depth > 0 else key


def one_draw_for_cousins(key: Key) -> Key:
    return key._replace(node=0) if key.purpose is Purpose.DRAFT and key.depth > 0 else key


def the_targets_noise(key: Key) -> Key:
    return token_key(key.root + key.depth)


def one_noise(key: Key) -> Key:
    return token_key(0)


# -- token verification with its laws laid open


def token_like(
    accept: Callable[[Row, Row, int], Fraction] = lambda p, q, x: acceptance(p[x], q[x]),
    rest: Callable[[Row, Row, int], Row] = lambda p, q, x: residual(p, q),
    bonus: Callable[[Sequence[Row], Draft], Row] = lambda rows, draft: rows[len(draft)],
) -> Rule:
    """Token verification of sampled drafts: by default the correct one."""

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        for i, x in enumerate(draft.tokens):
            p, q = rows[i], draft.rows[draft.row_of[i]]
            if not chance.coin(accept(p, q, x), Key(draft.root, i, Purpose.ACCEPT, i)):
                (y,) = chance.pick(rest(p, q, x), Key(draft.root, i, Purpose.REPLACE))
                return Verdict(tuple(range(i)), (*draft.tokens[:i], y), "replacement")
        n = len(draft)
        (y,) = chance.pick(bonus(rows, draft) if n else rows[0], Key(draft.root, n, Purpose.REPLACE))
        return Verdict(tuple(range(n)), (*draft.tokens, y), "bonus" if n else "target")

    return rule


def point(index: int, p: Row) -> Row:
    return one_hot(index, len(p))


def softmax(row: Row) -> Row:
    return np.array([Fraction(exp(x)).limit_denominator(10**6) for x in row], dtype=object)


# -- block verification, plainly


def block_like(first_failure_ends: bool = False, weighted: bool = True, last_judged_by_q: bool = False) -> Rule:
    """Block verification of sampled drafts with every coin drawn, from the first on: by default the correct one.

    last_judged_by_q: the last token is not verified, but its q stays in use, as after a drafter's stop decision.
    """

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        n, weight = len(draft), [Fraction(1)]
        laws = [draft.rows[i] for i in draft.row_of]
        for i, x in enumerate(draft.tokens):
            weight.append(acceptance(weight[i] * rows[i][x], laws[i][x]))
        passes = [_passes(rows[i], laws[i], weight[i]) for i in range(1, n)]
        passes += [Fraction(0) if last_judged_by_q else weight[n]] if n else []
        coins = [chance.coin(prob, Key(draft.root, i, Purpose.ACCEPT, i)) for i, prob in enumerate(passes)]
        if first_failure_ends:
            kept = coins.index(False) if False in coins else n
        else:
            kept = max((i + 1 for i in range(n) if coins[i]), default=0)
        law = rows[kept]
        if kept < n and total(residual(law, laws[kept], weight[kept])) > 0:
            law = residual(law, laws[kept], weight[kept] if weighted else Fraction(1))
        (y,) = chance.pick(law, Key(draft.root, kept, Purpose.REPLACE))
        return Verdict(tuple(range(kept)), (*draft.tokens[:kept], y), "replacement" if kept < n else "bonus")

    return rule


def _passes(p: Row, q: Row, weight: Fraction) -> Fraction:
    rest = total(residual(p, q, weight))
    return rest / (rest + 1 - weight) if rest + 1 - weight else Fraction(1)


# -- recursive rejection, plainly


def recursive_like(update: bool = True, normalise: bool = True, skip_duplicates: bool = False) -> Rule:
    """Recursive rejection of sampled trees: by default the correct one."""

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        node, path = ROOT, []
        while True:
            p, law, tried, accepted = rows[node + 1], rows[node + 1], [], False
            for child in children(draft.parents, node):
                x, q = draft.tokens[child], draft.rows[draft.row_of[child]]
                if skip_duplicates and x in tried:
                    continue
                tried.append(x)
                accepted = chance.coin(acceptance(law[x], q[x]), Key(draft.root, len(path), Purpose.ACCEPT, child))
                if accepted:
                    path.append(child)
                    node = child
                    break
                rest = residual(law if update else p, q)
                law = rest / total(rest) if normalise and total(rest) > 0 else rest
            if not accepted:
                (y,) = chance.pick(law if total(law) > 0 else p, Key(draft.root, len(path), Purpose.REPLACE))
                return Verdict(tuple(path), (*(draft.tokens[node] for node in path), y), None)

    return rule


# -- traversal verification, plainly: by recursion, as the paper writes it


def traversal_like(update_law: bool = True, update_weight: bool = True) -> Rule:
    """Traversal verification of sampled trees: by default the correct one."""

    def rule(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        found = _visit(draft, rows, chance, ROOT, Fraction(1), (), (update_law, update_weight))
        assert found is not None  # the root owes 1
        path, law = found
        (y,) = chance.pick(law, Key(draft.root, len(path), Purpose.REPLACE))
        return Verdict(path, (*(draft.tokens[node] for node in path), y), None)

    return rule


def _visit(
    draft: Draft,
    rows: Sequence[Row],
    chance: Chance,
    node: int,
    weight: Fraction,
    path: tuple[int, ...],
    updates: tuple[bool, bool],
) -> tuple[tuple[int, ...], Row] | None:
    """The path that the subtree of `node` is left with, and the law of the token after it; None if it fails."""
    law = rows[node + 1]
    for child in children(draft.parents, node):
        x, q = draft.tokens[child], draft.rows[draft.row_of[child]]
        owed = acceptance(weight * law[x], q[x])
        found = _visit(draft, rows, chance, child, owed, (*path, child), updates) if owed else None
        if found is not None:
            return found
        rest = residual(law, q, weight)
        mass = total(rest)
        if mass and updates[0]:
            law = rest / mass
        if updates[1]:
            weight = mass / (mass + 1 - weight) if mass + 1 - weight else Fraction(1)
    if node == ROOT or chance.coin(weight, Key(draft.root, len(path) - 1, Purpose.ACCEPT, node)):
        return path, law
    return None


# -- siblings out of order, laws recorded wrongly


def siblings_sorted(rule: Rule) -> Rule:
    """One level, tried from the likeliest to the least, whatever the order they were drawn in."""

    def other(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
        order = sorted(range(len(draft)), key=lambda i: -draft.rows[draft.row_of[i]][draft.tokens[i]])
        shuffled = replace(
            draft,
            tokens=tuple(draft.tokens[i] for i in order),
            row_of=tuple(draft.row_of[i] for i in order),
        )
        verdict = rule(shuffled, [rows[0], *(rows[i + 1] for i in order)], chance)
        return replace(verdict, path=tuple(order[node] for node in verdict.path))

    return other


def recorded(law: Callable[[Row, Row], Row]) -> toys.Siblings:
    """Draws without replacement, recorded as `law(full q, what it was drawn from)`."""

    def siblings(q: Row, k: int, draw: toys.Draw) -> list[toys.Child]:
        return [(x, law(q, drawn_from)) for x, drawn_from in toys.distinct(q, k, draw) if drawn_from is not None]

    return siblings


def unnormalised(q: Row, drawn_from: Row) -> Row:
    return np.array([q[x] if drawn_from[x] > 0 else Fraction(0) for x in range(len(q))], dtype=object)


# -- drafts that were looked at


def recorded_colder(draft: Draft) -> Draft:
    """Claims the law at half the temperature: what recomputing q with other settings does."""
    return replace(draft, rows=tuple(row**2 / total(row**2) for row in draft.rows))


def stop_at(doubtful: Callable[[Draft, int], bool]) -> Callable[[Draft], Draft]:
    """Cuts the draft at the first doubtful node, which goes too."""

    def edit(draft: Draft) -> Draft:
        n = next((node for node in range(len(draft)) if doubtful(draft, node)), len(draft))
        return Draft.chain(draft.root, draft.tokens[:n], draft.kind[0] if n else Kind.CHOSEN, "", draft.rows[:n])

    return edit


def unlikely_token(draft: Draft, node: int) -> bool:
    return draft.rows[node][draft.tokens[node]] < Fraction(1, 3)


def unsure_law(draft: Draft, node: int) -> bool:
    return max(draft.rows[node]) < Fraction(1, 2)


def better_of_two(q: Row, k: int, draw: toys.Draw) -> list[toys.Child]:
    """Draws twice, keeps the likelier: a choice between two drafters by what they sampled."""
    return [(max(draw(q), draw(q), key=lambda x: q[x]), q)]


def least_likely_dropped(q: Row, k: int, draw: toys.Draw) -> list[toys.Child]:
    """Draws k + 1 and drops the least likely: a tree that is reranked and pruned."""
    drawn = toys.independent(q, k, draw)
    worst = min(range(k), key=lambda i: q[drawn[i][0]])
    return [child for i, child in enumerate(drawn) if i != worst]


def greedy_full(q: Row, k: int, draw: toys.Draw) -> list[toys.Child]:
    return [(x, law if law is None else q) for x, law in toys.greedy(q, k, draw)]


def as_sampled(draft: Draft) -> Draft:
    return replace(draft, kind=(Kind.SAMPLED,) * len(draft))


def drawn(kind: Kind = Kind.SAMPLED) -> Callable[[Pair], Drafter]:
    return lambda pair: ModelDrafter(TableTarget(pair.q, pair.vocab_size), kind)


def edited(edit: Callable[[Draft], Draft], kind: Kind = Kind.SAMPLED) -> Callable[[Pair], Drafter]:
    return lambda pair: Edited(drawn(kind)(pair), edit)


def grown(shape: toys.Shape, siblings: toys.Siblings) -> Callable[[Pair], Drafter]:
    return lambda pair: toys.grower(pair.q, lambda root: shape, [siblings])


def soft_argmax(pair: Pair) -> Drafter:
    """Always the draft model's argmax, with the model's law passed off as the one it was drawn from."""
    return toys.chooser(lambda history: argmax(pair.q(history)), pair.q)


# -- matching and coupling


def sample_and_match(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """Samples from p with noise of its own and accepts a child that equals the sample: lossless, merely slow."""
    path: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        tokens += chance.pick(rows[node + 1], Key(draft.root, len(path), Purpose.REPLACE))
        match = [child for child in children(draft.parents, node) if draft.tokens[child] == tokens[-1]]
        if not match:
            return Verdict(tuple(path), tuple(tokens), None)
        node = match[0]
        path.append(node)


def without_bonus(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    verdict = token(draft, rows, chance)
    return replace(verdict, tokens=verdict.tokens[:-1], last=None) if verdict.last == "bonus" else verdict


def drawn_again(draft: Draft, rows: Sequence[Row], chance: Chance) -> Verdict:
    """Coupled, but where no child equals the target's sample, the token is drawn once more."""
    verdict = coupled(draft, rows, chance)
    if verdict.last != "replacement":
        return verdict
    end = verdict.path[-1] if verdict.path else ROOT
    (y,) = chance.pick(rows[end + 1], Key(draft.root, len(verdict.path), Purpose.REPLACE))
    return replace(verdict, tokens=(*verdict.tokens[:-1], y))
