"""A run in words and tables, for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..wording import counted
from .bootstrap import FEWEST, Interval
from .figures import HF_PLAIN, PHASES, Figures, Percentiles, SettingFigures, SystemFigures, figures
from .pace import SLOW
from .record import AGAIN, PLAIN, Run
from .tables import table

_NONE = "-"
_MARKS = f"+ above 1, - below 1, with 95 % confidence; no mark below {FEWEST} prompts or groups of a category"
_MIXED = "; prompts answered together with those of other categories count in all alone"
_COLUMNS = (
    "speed-up: in tokens a second, of plain's; worst: of one prompt. best peer: the fastest one here. first: until a "
    "token comes (median). gap: from one arrival to the next. same text: as plain's. + above 1, - below 1, with 95 % "
    "confidence.",
)


def lines(run: Run | Figures, width: int = 110) -> str:
    """All tables, setting by setting, and at the end where ours lose."""
    found = run if isinstance(run, Figures) else figures(run)
    parts = [part for setting in found.settings for part in _setting(setting, width)]
    lost = sentences(found)
    if lost:
        parts.append("Where ours lose\n===============\n" + _paragraphs(lost, width))
    return "\n\n".join(part for part in parts if part)


def _setting(setting: SettingFigures, width: int) -> Iterator[str]:
    title = f"{setting.name}: {counted(setting.questions, 'prompt')}, {_sample(setting)}"
    yield f"{title}\n{'=' * len(title)}"
    yield _systems(setting, width)
    yield _paragraphs(_COLUMNS, width)
    yield _paragraphs(_remarks(setting), width)
    if setting.categories:
        yield "Speed-up by category\n" + _categories(setting, width)
        yield _MARKS + (_MIXED if setting.batch > 1 else "")
    by_depth = _by_depth(setting, width)
    if by_depth:
        yield "Acceptance by depth\n" + by_depth
        yield _paragraphs(_DEPTHS, width)
    yield "Milliseconds a token\n" + _times(setting, width)
    yield _paragraphs(_WAIT, width)


def _sample(setting: SettingFigures) -> str:
    """What intervals are over."""
    what = "prompt" if setting.batch == 1 else "group"
    if setting.groups < FEWEST:
        return f"too few for intervals: {counted(setting.groups, what)} of the {FEWEST} that these take"
    return f"intervals over {counted(setting.groups, what)}"


_DEPTHS = (
    "so far: rounds that accepted this deep, of all that drafted. if reached: the same, of those that accepted all "
    "before it, drafted something below that and put a token there. seen, bound: acceptance in some answers that were "
    "looked at without a clock, and the most any lossless rule could have accepted there; fixed lengths: drafts of "
    "fixed length were looked at, which are not the system's own, whose length follows costs; the bound holds for all "
    "depths, but under block and traversal, which look ahead, for the first alone.",
)


_WAIT = (
    "prefill: reading the prompt, up to and including the first round's forward. all: 1000 over tokens/s, what the "
    "parts add up to. wait: of the median answer, from its first arrival to its last.",
)


def _paragraphs(remarks: Sequence[str] | Iterator[str], width: int) -> str:
    return "\n".join(textwrap.fill(each, width, subsequent_indent="  ", break_long_words=False) for each in remarks)


# the systems


_HEAD = (
    "system",
    "speed-up\n[95 %]",
    "vs hf\nplain",
    "vs best\npeer",
    "tokens\n/s",
    "tokens\n/pass",
    "accept\nlength",
    "accept\nrate",
    "first\nms",
    "gap ms\np50/95",
    "same\ntext",
    "worst",
)


def _systems(setting: SettingFigures, width: int) -> str:
    return table(_HEAD, [_row(each) for each in setting.systems], width)


def _row(system: SystemFigures) -> list[str]:
    drafting, waiting, plain, hf = system.drafting, system.waiting, system.against_plain, system.against_hf
    best = system.against_best_peer
    return [
        system.name,
        "baseline" if system.name == PLAIN else _interval(plain.mix if plain else None),
        _marked(hf.mix if hf else None),
        _marked(best.speed_up.mix if best else None),
        f"{system.pace.tokens_per_second:.1f}",
        _number(drafting.tokens_per_pass if drafting else None, ".2f"),
        _number(drafting.acceptance_length if drafting else None, ".2f"),
        _number(drafting.acceptance_rate if drafting else None, ".0%"),
        _number(waiting.first.p50 if waiting.first else None, ".0f"),
        _both(waiting.between),
        _NONE if system.same is None else f"{system.same.equal}/{system.same.compared}",
        _number(plain.worst.ratio if plain else None, ".2f"),
    ]


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)


def _both(found: Percentiles | None) -> str:
    return _NONE if found is None else f"{found.p50:.0f}/{found.p95:.0f}"


def _interval(found: Interval | None) -> str:
    if found is None:
        return _NONE
    return f"{found.value:.2f}{_range(found)}"


def _range(found: Interval) -> str:
    return f" [{found.low:.2f}, {found.high:.2f}]" if found.low is not None else ""


def _marked(found: Interval | None) -> str:
    if found is None:
        return _NONE
    return f"{found.value:.2f}{'+' if found.above_one else '-' if found.below_one else ' '}"


# what the table does not hold


def _remarks(setting: SettingFigures) -> Iterator[str]:
    yield _noise(setting.noise)
    yield from _best_peers(setting.systems)
    for system, why in setting.dropped.items():
        yield f"{system} is out: {why.removeprefix(f'{system}: ')}"
    for system in setting.systems:
        yield from (f"{system.name}: {remark}" for remark in _of(system, setting.questions))


def _noise(found: Interval | None) -> str:
    if found is None:
        return f"noise: not known, since {AGAIN!r} was not measured"
    return (
        f"noise: plain against itself is {_interval(found)}; a difference within that means nothing. It is timing "
        "alone: what a system has learned, or whom it follows, is not in it"
    )


def _best_peers(systems: Sequence[SystemFigures]) -> Iterator[str]:
    """Its name; with those who measure against it if it is not the same for all, who may share other groups with it."""
    found: dict[str, list[str]] = {}
    for system in systems:
        if system.against_best_peer is not None:
            found.setdefault(system.against_best_peer.name, []).append(system.name)
    for name, whose in found.items():
        yield f"best peer{' of ' + ', '.join(whose) if len(found) > 1 else ''}: {name}"


def _of(system: SystemFigures, questions: int) -> Iterator[str]:
    if system.questions < questions:
        yield f"{system.questions} of {counted(questions, 'prompt')} measured"
    same, broken = system.same, _broken(system)
    if broken:
        yield broken
    elif same is not None and same.equal < same.compared:
        kinds = ((same.ties, "by a tie"), (same.others, "without a tie"), (same.unseen, "not looked into"))
        told = ", ".join(f"{count} {how}" for count, how in kinds if count)
        yield f"{same.compared - same.equal} of {counted(same.compared, 'text')} not as plain's ({told})"
    if system.same_tokens is False:
        yield "not the same text in every repeat"
    if system.same_tokens and system.same_counts is False:
        yield "the same text in every repeat, but not with the same drafts"
    if system.drafting is not None and len(system.drafting.origins) > 1:
        yield "accepted of drafted, by drafter: " + ", ".join(
            f"{origin or 'unnamed'} {each.accepted} of {each.drafted}"
            for origin, each in system.drafting.origins.items()
        )


# by category, by depth, by phase


def _categories(setting: SettingFigures, width: int) -> str:
    names = setting.categories
    head = ["system", "all", *("\n".join(textwrap.wrap(name, 10, break_long_words=False)) for name in names)]
    rows = []
    for system in setting.systems:
        found = system.against_plain
        if found is not None:
            rows.append([system.name, _marked(found.mix), *(_marked(found.categories.get(name)) for name in names)])
    return table(head, rows, width) if rows else "nothing to compare with plain"


def _by_depth(setting: SettingFigures, width: int) -> str:
    rows = []
    for system in setting.systems:
        positions = system.drafting.positions if system.drafting is not None else ()
        if positions:
            rows.append([system.name, *([""] * len(positions))])
            rows.append(["  so far", *(_number(each.marginal, ".2f") for each in positions)])
            rows.append(["  if reached", *(_number(each.conditional, ".2f") for each in positions)])
        if system.bounds:
            if not positions:
                rows.append([system.name, *([""] * len(system.bounds))])
            how = " (fixed lengths)" if system.fixed_lengths else ""
            rows.append([f"  seen{how}", *(_number(each.accepted, ".2f") for each in system.bounds)])
            if any(each.bound is not None for each in system.bounds):
                rows.append([f"  bound{how}", *(_number(each.bound, ".2f") for each in system.bounds)])
    if not rows:
        return ""
    depths = max(len(row) for row in rows) - 1
    head = ["depth", *map(str, range(1, depths + 1))]
    return table(head, [row + [""] * (depths + 1 - len(row)) for row in rows], width)


def _times(setting: SettingFigures, width: int) -> str:
    head = ("system", *PHASES, "all", "median\nwait", "peak\nGB")
    rows = []
    for system in setting.systems:
        phases, token = system.phases or {}, system.waiting.token
        rows.append(
            [
                system.name,
                *(_number(phases.get(phase), ".2f") for phase in PHASES),
                f"{system.token_ms:.2f}",
                _number(token.p50 if token else None, ".2f"),
                _NONE if system.peak_bytes is None else f"{system.peak_bytes / 1e9:.2f}",
            ]
        )
    return table(head, rows, width)


# where we lose


def sentences(found: Figures) -> list[str]:
    """Where ours lose, in plain words, broken promises first: none if nowhere."""
    ours = [(setting.name, each) for setting in found.settings for each in setting.systems if each.kind == "ours"]
    broken = [f"{setting}: {system.name} {told}." for setting, system in ours if (told := _broken(system))]
    lost = [
        f"{setting}: {sentence}" for setting, system in ours if system.name != AGAIN for sentence in _losses(system)
    ]
    return broken + lost


def _broken(system: SystemFigures) -> str | None:
    """What became of the promise of plain decoding's texts; None if it was kept or not given."""
    same = system.same
    if system.kind != "ours" or system.claim != "bit-exact" or same is None or same.equal == same.compared:
        return None
    return f"promises plain's text and has it in {same.equal} of {counted(same.compared, 'answer')}"


def _losses(system: SystemFigures) -> Iterator[str]:
    plain, hf, best = system.against_plain, system.against_hf, system.against_best_peer
    if plain is not None:
        yield from _slower(system.name, PLAIN, plain.mix)
    if best is not None and best.speed_up.mix.value < 1:
        mix = best.speed_up.mix
        yield f"{system.name} is slower than the best peer, {best.name}: {_interval(mix)}{_reaching(mix)}."
    if hf is not None:
        if best is None or best.name != HF_PLAIN:
            yield from _slower(system.name, HF_PLAIN, hf.mix)
        behind = [f"{name} ({_interval(each)})" for name, each in hf.categories.items() if each.value < 1]
        if behind:
            yield f"{system.name} is slower than {HF_PLAIN} in {', '.join(behind)}."
    if plain is not None and plain.slow:
        worst = plain.slow[0]
        what = "group" if any(len(each.questions) > 1 for each in plain.slow) else "prompt"
        yield (
            f"{system.name} is below {SLOW:.2f} of {PLAIN} on {len(plain.slow)} of {counted(plain.groups, what)}; "
            f"worst: {', '.join(worst.questions)} ({worst.ratio:.2f})."
        )


def _slower(name: str, base: str, found: Interval) -> Iterator[str]:
    """What its interval does not rule out is left unsaid; without an interval nothing is."""
    if found.below_one or (found.high is None and found.value < 1):
        yield f"{name} is slower than {base}: {_interval(found)}{_reaching(found)}."


def _reaching(found: Interval) -> str:
    """
    >>> _reaching(Interval(0.9, 0.8, 1.1)), _reaching(Interval(0.8, 0.7, 0.9)), _reaching(Interval(0.9))
    ('; its interval reaches 1', '', '; too few for an interval')
    """
    if found.high is None:
        return "; too few for an interval"
    return "" if found.below_one else "; its interval reaches 1"
