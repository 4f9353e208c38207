"""Hugging Face's `generate` under measurement: in a process of its own, which may run in another Python.

Whatever that process does, whoever asks gets answers that can be, or a RunnerError of one line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from .line import PATIENCE, Line
from .provenance import homeless
from .runner import Answer, Answers, Ask, RunnerError, Setting, checked

PROGRAM = Path(__file__).with_name("hugging_face.py")

_NEEDED = ("torch", "transformers")
_PROBE = """
import json, sys
from importlib.metadata import version
from importlib.util import find_spec
sys.path[:] = filter(None, sys.path)
names = {"torch": "torch", "transformers": "transformers", "sklearn": "scikit-learn"}
found = {name: version(name) if find_spec(module) else None for module, name in names.items()}
print(json.dumps({"python": sys.version.split()[0], **found}))
"""
_SETTLE = 0.02  # seconds: threads that have done their part spin for half of it before they sleep
_MOST_CRASHES = 2


# ways to generate


@dataclass(frozen=True, slots=True)
class Method:
    """options: as hugging_face.py takes them."""

    kind: str  # plain, lookup or assisted
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """
        >>> Method("lookup", {"tokens": 5, "ngram": 2}).name
        'hf lookup 5'
        >>> Method("assisted", {"tokens": 8, "schedule": "constant", "confidence": 0.4}).name
        'hf assisted constant 8 conf .4'
        """
        words, options = ["hf", self.kind], self.options
        if self.kind == "lookup":
            words += [f"{options['tokens']}"] if options["tokens"] != _LOOKUP["tokens"] else []
            words += [f"ngram {options['ngram']}"] if options["ngram"] != _LOOKUP["ngram"] else []
        if self.kind == "assisted":
            dynamic = options["schedule"] == "heuristic"
            words.append("dynamic" if dynamic else "constant")
            words += [f"{options['tokens']}"] if not dynamic or options["tokens"] != _ASSISTED["tokens"] else []
            words += [f"conf {options['confidence']:g}".replace(" 0.", " .")] if options["confidence"] else []
        return " ".join(words)


_LOOKUP: dict[str, Any] = {"tokens": 10, "ngram": 2}
_ASSISTED: dict[str, Any] = {"tokens": 5, "schedule": "constant", "confidence": 0.0}
_KINDS: dict[str, tuple[Method, ...]] = {
    "plain": (Method("plain", {}),),
    "lookup": (Method("lookup", _LOOKUP),),
    "assisted": (
        Method("assisted", {"tokens": 3, "schedule": "constant", "confidence": 0.0}),
        Method("assisted", {"tokens": 5, "schedule": "heuristic", "confidence": 0.0}),
        Method("assisted", {"tokens": 8, "schedule": "constant", "confidence": 0.4}),
        Method("assisted", {"tokens": 5, "schedule": "heuristic", "confidence": 0.4}),
    ),
}


def methods_named(kinds: Sequence[str], assistant: bool) -> list[Method]:
    """plain, lookup, assisted (all its settings), hf (all; assisted if there is an assistant), or one with settings of
    its own. ValueError for what is none of them.

    >>> [each.name for each in methods_named(["hf", "lookup:tokens=5", "plain"], assistant=False)]
    ['hf plain', 'hf lookup', 'hf lookup 5']
    """
    found: list[Method] = []
    for text in kinds:
        kind, colon, given = text.partition(":")
        if text == "hf":
            found += [each for name, some in _KINDS.items() if assistant or name != "assisted" for each in some]
        elif kind not in _KINDS:
            raise ValueError(f"peers: {text!r} is unknown; known are {', '.join(_KINDS)}, hf, lookup:tokens=5")
        else:
            found += [_with_settings(text, kind, given)] if colon else _KINDS[kind]
    return list({each.name: each for each in found}.values())


def _with_settings(text: str, kind: str, given: str) -> Method:
    options = dict({"plain": {}, "lookup": _LOOKUP, "assisted": _ASSISTED}[kind])
    if not options:
        raise ValueError(f"peers: {text!r} has settings, but {kind} takes none; leave them out")
    for each in given.split(","):
        key, _, value = each.strip().partition("=")
        if key not in options:
            raise ValueError(f"peers: {text!r} has {key!r}; {kind} takes {', '.join(options)}, such as tokens=5")
        read, must = _SETTINGS[key]
        try:
            options[key] = read(value)
        except ValueError:
            raise ValueError(f"peers: {text!r} has {key}={value}; it must be {must}") from None
    return Method(kind, options)


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def _schedule(text: str) -> str:
    if text not in ("constant", "heuristic"):
        raise ValueError(text)
    return text


def _confidence(text: str) -> float:
    if not 0 <= float(text) < 1:
        raise ValueError(text)
    return float(text)


_SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "tokens": (_count, "a whole number from 1 on"),
    "ngram": (_count, "a whole number from 1 on"),
    "schedule": (_schedule, "constant or heuristic"),
    "confidence": (_confidence, "a number from 0 to below 1"),
}


# the systems


def hugging_face_runners(
    kinds: Sequence[str],
    python: str | Path | None,
    model: Path,
    assistant: Path | None,
    dtype: str,
    threads: int,
    timeout: float,
) -> list[HuggingFace]:
    """A system for each kind (see `methods_named`), all in one process, on the CPU. python: None is this one. dtype: by
    torch's name. timeout: seconds that an answer may take."""
    methods = methods_named(kinds, assistant is not None)
    if assistant is not None and not assistant.is_dir():
        raise ValueError(f"assistant: there is no folder {str(assistant)!r}; give that of a model")
    process = PeerProcess(python or sys.executable, model, assistant, dtype, threads, timeout)
    return [HuggingFace(method, process) for method in methods]


class HuggingFace:
    """One way to generate, as a `Runner`. To close it closes the process that it shares with others."""

    kind = "peer"

    def __init__(self, method: Method, process: PeerProcess) -> None:
        self.name = method.name
        self._method, self._process = method, process
        self._crashes = 0

    def cannot(self, setting: Setting) -> str | None:
        if self._method.kind == "assisted" and self._process.assistant is None:
            return "it needs a draft model"
        if self._method.kind != "plain" and setting.batch > 1:
            return "it takes one prompt at a time"
        if setting.dtype != self._process.dtype:
            return f"it was loaded in {self._process.dtype}"
        return self._process.cannot()

    def describe(self) -> dict[str, Any]:
        how = {"kind": self.kind, "method": self._method.kind, **self._method.options}
        return how | self._process.describe()

    def answer(self, ask: Ask) -> Answers:
        if self._crashes == _MOST_CRASHES:
            raise RunnerError(f"{self.name}: its process ended {_MOST_CRASHES} times; it is not started again")
        request = {
            "op": "answer",
            "system": {"method": self._method.kind, **self._method.options},
            "prompts": ask.prompts,
            "seeds": ask.seeds,
            "temperature": ask.temperature,
            "max_tokens": ask.max_tokens,
            "end_ids": ask.end_ids,
        }
        try:
            found = _answers(self._process.ask(request, assisted=self._method.kind == "assisted"))
        except RunnerError as error:
            self._crashes += not self._process.running
            raise RunnerError(homeless(f"{self.name}: {error}")) from None
        return checked(ask, found, self.name)

    def close(self) -> None:
        self._process.close()


def _answers(reply: Mapping[str, Any]) -> Answers:
    try:
        seconds, peak = float(reply["seconds"]), reply["peak_bytes"]
        answers = tuple(_answer(each, seconds) for each in reply["answers"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunnerError(f"its reply is none to what was asked ({type(error).__name__}: {error})") from None
    if not (isfinite(seconds) and seconds > 0 and (peak is None or _is_count(peak))):
        raise RunnerError(f"it says that it took {seconds} seconds and {peak} bytes")
    return Answers(seconds, answers, peak)


def _answer(found: Mapping[str, Any], most: float) -> Answer:
    ids = tuple(found["token_ids"])
    arrivals = tuple((float(seconds), count) for seconds, count in found["arrivals"])
    if not all(_is_count(token) for token in ids):
        raise ValueError("token_ids: not all are whole numbers from 0 on")
    times = [0.0, *(seconds for seconds, _ in arrivals), most]
    if times != sorted(times) or not all(_is_count(count) and count for _, count in arrivals):
        raise ValueError("arrivals: they are out of order")
    return Answer(ids, arrivals)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


# the process


class PeerProcess:
    """A model, loaded at the first request, and its assistant, loaded at the first that it assists. After a crash the
    next request loads them again; where one cannot be loaded, every further request that needs it fails at once."""

    def __init__(
        self,
        python: str | Path,
        model: Path,
        assistant: Path | None,
        dtype: str,
        threads: int,
        timeout: float,
        program: Path = PROGRAM,
    ) -> None:
        self.assistant, self.dtype = assistant, dtype
        self._python, self._model, self._threads, self._timeout = str(python), model, threads, timeout
        self._program = program
        self._line: Line | None = None
        self._probe: tuple[dict[str, Any], str | None] | None = None
        self._assists = self._warm = False  # whether the assistant is loaded; whether all that is has answered before
        self._broken: str | None = None  # why it cannot be loaded
        self._unassisted: str | None = None  # why its assistant cannot

    def cannot(self) -> str | None:
        """Why this Python cannot run it, found out once, and without importing what is large."""
        return homeless(self._probed()[1])

    def describe(self) -> dict[str, Any]:
        return {
            "model": self._model.name,
            "assistant": None if self.assistant is None else self.assistant.name,
            "dtype": self.dtype,
            "threads": self._threads,
            "versions": self._probed()[0],
        }

    @property
    def running(self) -> bool:
        return self._line is not None and self._line.open

    def ask(self, request: Mapping[str, Any], assisted: bool = False) -> dict[str, Any]:
        broken = self._broken or (self._unassisted if assisted else None)
        if broken is not None:
            raise RunnerError(broken)
        if self._line is None or not self._line.open:
            self._line, self._assists, self._warm = self._loaded(), False, False
        if assisted and not self._assists and self.assistant is not None:
            self._assist(self._line, self.assistant)
        if not self._warm:
            self._line.ask(request, self._timeout)  # not counted: a model's first answer takes longer
            self._warm = True
        time.sleep(_SETTLE)  # whoever was measured before has threads that still spin
        reply = self._line.ask(request, self._timeout)
        time.sleep(_SETTLE)
        return reply

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _loaded(self) -> Line:
        request = {
            "op": "load",
            "model": str(self._model),
            "dtype": self.dtype,
            "threads": self._threads,
        }
        line = None
        try:
            line = Line([self._python, str(self._program)], self._environment())
            line.ask(request, self._timeout)
        except RunnerError as error:
            if line is not None:
                line.close()
            self._broken = f"it cannot be loaded: {error}"
            raise RunnerError(self._broken) from None
        return line

    def _assist(self, line: Line, assistant: Path) -> None:
        try:
            line.ask({"op": "assist", "assistant": str(assistant)}, self._timeout)
        except RunnerError as error:
            self._unassisted = f"its assistant cannot be loaded: {error}"
            raise RunnerError(self._unassisted) from None
        self._assists, self._warm = True, False

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "OMP_NUM_THREADS": str(self._threads),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def _probed(self) -> tuple[dict[str, Any], str | None]:
        if self._probe is None:
            self._probe = _probe(self._python, min(self._timeout, PATIENCE))
        return self._probe


def _probe(python: str, timeout: float) -> tuple[dict[str, Any], str | None]:
    """The versions of what is installed, and what is wrong."""
    try:
        line = Line([python, "-c", _PROBE], dict(os.environ))
        try:
            versions = line.ask({}, timeout)
        finally:
            line.close()
    except RunnerError as error:
        return {}, f"skipped: {python} is no Python that runs ({error})"
    missing = [name for name in _NEEDED if versions.get(name) is None]
    return versions, f"skipped: {python} has no {' and no '.join(missing)}" if missing else None
