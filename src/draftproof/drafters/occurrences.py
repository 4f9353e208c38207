"""What followed what: every context of up to `longest` tokens of some texts, how often it occurred and what came next.

A suffix automaton (Blumer et al. 1985), grown token by token. A state stands for all contexts that ended at the same
places, so a text of n tokens has at most 2n of them however long the contexts. It is cut at `longest`, as truncated
suffix trees are (Na et al. 2003): no step then looks at more than longest + 2 states, whatever the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

ROOT = 0
"""The state of the empty context."""

Place = tuple[int, int]
"""A state, and how many of its longest context's tokens, counted from the end, are meant."""

START: Place = (ROOT, 0)

_NONE = -1


def _ints(first: int) -> array[int]:
    return array("i", [first])


@dataclass(slots=True)
class Occurrences:
    """An automaton over the texts so far. Parallel arrays, a state an index; all that it holds follows from the texts.

    length: tokens of the state's longest context. suffix: the state of its longest context that occurred elsewhere too.
    count: how often it occurred. only, after: token and state of what followed it, if that was always one token;
    branches: else a dict of all, in the order they were first seen.

    140 bytes a token of English text, 150 of Python, at most 310 found (random bits), measured at 10,000 tokens.
    """

    longest: int
    read: int = 0
    length: array[int] = field(default_factory=lambda: _ints(0))
    suffix: array[int] = field(default_factory=lambda: _ints(ROOT))
    count: array[int] = field(default_factory=lambda: _ints(0))
    only: array[int] = field(default_factory=lambda: _ints(_NONE))
    after: array[int] = field(default_factory=lambda: _ints(_NONE))
    branches: dict[int, dict[int, int]] = field(default_factory=dict)

    def extend(self, state: int, tokens: Sequence[int]) -> int:
        """Read on in a text whose end so far is `state` (ROOT: a new text); the state of its new end."""
        for token in tokens:
            state = at = self._append(state, token)
            while at != ROOT:
                self.count[at] += 1
                at = self.suffix[at]
        self.read += len(tokens)
        return state

    def step(self, state: int, token: int) -> int:
        """The state after `token`; -1 if it never followed."""
        if self.only[state] == token:
            return self.after[state]
        found = self.branches.get(state)
        return _NONE if found is None else found.get(token, _NONE)

    def walk(self, place: Place, token: int) -> Place:
        """The longest context that occurred, after one more token."""
        state, matched = self._cut(place)
        while (found := self.step(state, token)) == _NONE:
            if state == ROOT:
                return START
            state = self.suffix[state]
            matched = self.length[state]
        return found, matched + 1

    def find(self, tokens: Sequence[int]) -> Place:
        """The longest end of `tokens` that occurred."""
        place = START
        for token in tokens:
            place = self.walk(place, token)
        return place

    def contexts(self, place: Place, shortest: int, most: int) -> list[Place]:
        """The contexts here that anything followed, longest first, `most` of them at most."""
        state, matched = self._cut(place)
        out: list[Place] = []
        while matched >= shortest and state != ROOT and len(out) < most:
            if self.only[state] != _NONE or state in self.branches:
                out.append((state, min(matched, self.longest)))
            state = self.suffix[state]
            matched = self.length[state]
        return out

    def followers(self, state: int, most: int) -> tuple[int, dict[int, int]]:
        """How many different tokens followed, and of them how often each, the last that was new first.

        Of more than `most`, as many of the last and of the first: what is frequent was seen early or lately.
        """
        found = self.branches.get(state)
        count = self.count
        if found is None:
            return 1, {self.only[state]: count[self.after[state]]}
        shown = reversed(found.items())
        if len(found) > most:
            shown = chain(islice(shown, most - most // 2), islice(found.items(), most // 2))
        return len(found), {token: count[after] for token, after in shown}

    def often(self, state: int, token: int) -> int:
        """How many times `token` followed."""
        found = self.step(state, token)
        return 0 if found == _NONE else self.count[found]

    def _cut(self, place: Place) -> Place:
        """Without what is beyond `longest`: longer contexts are not told apart."""
        state, matched = place
        while self.length[self.suffix[state]] >= self.longest:
            state = self.suffix[state]
            matched = self.length[state]
        return state, matched

    def _append(self, state: int, token: int) -> int:
        state, _ = self._cut((state, self.longest))
        found = self.step(state, token)
        if found != _NONE:
            return self._exactly(state, token, found)
        new = self._state(self.length[state] + 1)
        while found == _NONE:
            self._link(state, token, new)
            if state == ROOT:
                return new
            state = self.suffix[state]
            found = self.step(state, token)
        self.suffix[new] = self._exactly(state, token, found)
        return new

    def _exactly(self, state: int, token: int, found: int) -> int:
        """The state of the contexts of `state` with `token` after them: `found`, less what it holds beyond these."""
        length = self.length[state] + 1
        if self.length[found] == length:
            return found
        part = self._state(length)
        self.suffix[part], self.suffix[found] = self.suffix[found], part
        self.count[part] = self.count[found]
        self.only[part], self.after[part] = self.only[found], self.after[found]
        if found in self.branches:
            self.branches[part] = self.branches[found].copy()
        while self.step(state, token) == found:
            self._link(state, token, part)
            if state == ROOT:
                break
            state = self.suffix[state]
        return part

    def _state(self, length: int) -> int:
        self.length.append(length)
        self.suffix.append(ROOT)
        self.count.append(0)
        self.only.append(_NONE)
        self.after.append(_NONE)
        return len(self.length) - 1

    def _link(self, state: int, token: int, target: int) -> None:
        if state in self.branches:
            self.branches[state][token] = target
        elif self.only[state] in (_NONE, token):
            self.only[state], self.after[state] = token, target
        else:
            self.branches[state] = {self.only[state]: self.after[state], token: target}
            self.only[state] = self.after[state] = _NONE
