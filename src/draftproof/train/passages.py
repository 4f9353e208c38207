"""Passages of plain text: whole sentences of one section, as people write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle

_UNKNOWN = "<unk>"  # what WikiText has where a word was rare: a name, nine times of ten
_NUMBER, _NAMED = re.compile(rf"(?<=\d,){_UNKNOWN}"), re.compile(_UNKNOWN)
_NAMES = (
    *("Marlow", "Adelina", "Corvin", "Thessaly", "Brandt", "Osterley", "Quill", "Ramona", "Halden", "Verity", "Lomax"),
    *("Kestrel", "Dunmore", "Isolde", "Farrow", "Penhale", "Sorrel", "Tamsin", "Wexley", "Yardley", "Zelda", "Orrin"),
    *("Bexhill", "Calder", "Elspeth", "Garrick", "Juniper", "Linden", "Merrick", "Nerys", "Pascoe"),
)
_MOST_NAMED = 3  # of a sentence; one with more of them would say nothing

_TIDY: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r" @([-,.\u2013])@ "), r"\1"),
    (re.compile(r" ([,.;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{]) "), r"\1"),
    (re.compile(r'"\s*([^"]*?)\s*"'), r'"\1"'),
    (re.compile(r"(?<= )' ([^']{1,60}?) '(?=[ ,.;:)])"), r"'\1'"),
    (re.compile(r"(\w) '(s|t|re|ve|ll|d|m)\b"), r"\1'\2"),
    (re.compile(r"(\w) n't\b"), r"\1n't"),
    (re.compile(r"(\w) ' (?=\w)"), r"\1' "),
    (re.compile(r" (\u2019) (s|t|re|ve|ll|d|m)\b"), r"\1\2"),
    (re.compile(r"([£$€#]) (?=\d)"), r"\1"),
    (re.compile(r"(\d) (\u2013) (?=\d)"), r"\1\2"),
    (re.compile(r"[ \t\u00a0]+"), " "),
)
_HEADING = re.compile(r"(= )+[^=]+( =)+")
_SENTENCE = re.compile(
    r'(?:(?<=[.!?])|(?<=[.!?]["\u201d)]))(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|St|vs|No)\.)(?<!\bMrs\.)\s+(?=["\u201c(]?[A-Z0-9])'
)


def tidy(text: str) -> str:
    """Prose as people write it, of text whose tokens stand apart.

    >>> tidy("It 's a 1 @.@ 5 kg ( 3 lb ) lobster , \\" red \\" when well @-@ cooked .")
    'It\\'s a 1.5 kg (3 lb) lobster, "red" when well-cooked.'
    """
    for pattern, by in _TIDY:
        text = pattern.sub(by, text)
    return text.strip()


def passages_of(text: str, least: int, most: int) -> list[str]:
    """Paragraphs of one section together until they have `least` words, cut after a sentence before `most`.

    A word that is missing (WikiText's <unk>) becomes a name; a sentence in which many are missing is left out, and so
    is what is too short in the end.
    """
    passages: list[str] = []
    names = cycle(_NAMES)
    lines: list[list[str]] = []  # sentences of each paragraph

    def close() -> None:
        if sum(_words(each) for line in lines for each in line) >= least:
            passages.append("\n\n".join(" ".join(line) for line in lines))
        lines.clear()

    for paragraph in text.splitlines():
        if _HEADING.fullmatch(paragraph.strip()):
            close()
            continue
        lines.append([])
        for sentence in _SENTENCE.split(tidy(paragraph)):
            if not sentence or sentence.count(_UNKNOWN) > _MOST_NAMED:
                continue
            sentence = _NAMED.sub(lambda _: next(names), _NUMBER.sub("500", sentence))
            length = sum(_words(each) for line in lines for each in line)
            if length + _words(sentence) > most:
                close()
                lines.append([])
            if _words(sentence) <= most:
                lines[-1].append(sentence)
        if not lines[-1]:
            lines.pop()
        if sum(_words(each) for line in lines for each in line) >= least:
            close()
    close()
    return passages


def _words(text: str) -> int:
    return len(text.split())
