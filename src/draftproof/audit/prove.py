"""The proof of every rule: all cases by exact enumeration, all faults rejected, all that is harmless passed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from time import perf_counter
from typing import Any

from ..rules import RULES, why_not
from .cases import all_cases, cases_for, checked, deviation_of, refuses, specimen
from .exact import Laws
from .mutants import HARMLESS, MUTANTS, Difference, Mutant, first_difference


@dataclass(slots=True)
class Report:
    """What was proven of one rule. deviation: the largest total variation from the target, over all cases."""

    rule: str
    cases: int = 0
    deviation: Fraction = Fraction(0)
    failed: dict[str, Fraction] = field(default_factory=dict)  # case -> deviation, where it is not 0
    errors: dict[str, str] = field(default_factory=dict)  # case -> what was raised
    caught: dict[str, Difference] = field(default_factory=dict)  # fault -> where it shows
    missed: list[str] = field(default_factory=list)  # faults that the proof did not see
    harmless: list[str] = field(default_factory=list)  # passed, as they should
    accused: dict[str, Difference] = field(default_factory=dict)  # harmless, but rejected
    seconds: float = 0.0

    @property
    def proven(self) -> bool:
        return self.cases > 0 and not (self.failed or self.errors or self.missed or self.accused)


def prove(rule: str, progress: Callable[[str], None] = lambda message: None) -> Report:
    """Prove one of RULES. A rule that raises on a draft it claims to take, that answers with a verdict that contradicts
    itself, or that takes a draft it should refuse, has failed that case."""
    began = perf_counter()
    report = Report(rule)
    cases = cases_for(rule)
    for i, case in enumerate(cases):
        progress(f"{rule}: case {i + 1} of {len(cases)}, {case.name}")
        report.cases += 1
        with _noting(report, case.name):
            off = deviation_of(case.under(checked(RULES[rule])))
            report.deviation = max(report.deviation, off)
            if off != 0:
                report.failed[case.name] = off
    for case in all_cases():
        draft = specimen(case)
        if why_not(rule, draft.parents, draft.kind) is not None:
            with _noting(report, case.name):
                if not refuses(RULES[rule], draft):
                    raise ValueError("the rule does not take such drafts, and did not refuse this one")
    for name, found in _tried(report, MUTANTS, progress):
        if found is None:
            report.missed.append(name)
        else:
            report.caught[name] = found
    for name, found in _tried(report, HARMLESS, progress):
        if found is None:
            report.harmless.append(name)
        else:
            report.accused[name] = found
    report.seconds = perf_counter() - began
    return report


def _tried(
    report: Report, mutants: Sequence[Mutant], progress: Callable[[str], None]
) -> Iterator[tuple[str, Difference | None]]:
    """Each of the rule's mutants with where it differs from the target, if it does."""
    for mutant in mutants:
        if mutant.of == report.rule:
            progress(f"{report.rule}: {mutant.name}")
            with _noting(report, mutant.name):
                yield mutant.name, first_difference(mutant)


@contextmanager
def _noting(report: Report, name: str) -> Generator[None]:
    """Whatever a rule may raise is a finding, not the end of the proof."""
    try:
        yield
    except Exception as error:
        report.errors[name] = f"{type(error).__name__}: {error}"


def as_dict(report: Report) -> dict[str, Any]:
    """Plain data: fractions as "n/d", texts as lists of tokens joined by spaces."""
    return {
        "rule": report.rule,
        "proven": report.proven,
        "cases": report.cases,
        "deviation": str(report.deviation),
        "failed": {case: str(off) for case, off in report.failed.items()},
        "errors": report.errors,
        "mutants": {name: _difference(found) for name, found in report.caught.items()},
        "missed": report.missed,
        "harmless": report.harmless,
        "accused": {name: _difference(found) for name, found in report.accused.items()},
        "seconds": report.seconds,
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "case": found.case,
        "deviation": str(found.deviation),
        "text": _text(found.text),
        "target": _law(found.target),
        "emitted": _law(found.emitted),
    }


def _text(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def _law(law: Laws) -> dict[str, str]:
    return {_text(text): str(weight) for text, weight in sorted(law.items())}
