"""The memory bound and the texts that are kept under it."""

from __future__ import annotations

import pytest

from draftproof.drafters import NoDrafter
from draftproof.memory import KVMemory, Prefix, Prefixes
from draftproof.processors import common

DRAFTER = NoDrafter()
BLOCK = 64


def prefix(tokens: list[int]) -> Prefix:
    return Prefix(tokens, "session", DRAFTER, None)


def keep(memory: KVMemory, kept: Prefixes, tokens: list[int]) -> bool:
    size = -(-len(tokens) // BLOCK) * BLOCK
    room = kept.room_for(tokens, size)
    if room:
        kept.put(prefix(tokens), size)
    return room


def text(first: int, length: int) -> list[int]:
    return [first + i for i in range(length)]


def test_memory_is_held_up_to_the_bound():
    memory = KVMemory(10 * BLOCK)
    assert memory.hold("a", 4 * BLOCK)
    assert memory.hold("a", 2 * BLOCK), "less than it holds: nothing changes"
    assert memory.used == 4 * BLOCK
    assert memory.hold("b", 6 * BLOCK)
    assert not memory.hold("a", 5 * BLOCK)
    assert memory.held_by("a") == 4 * BLOCK
    memory.release("b")
    memory.release("b")
    assert memory.hold("a", 10 * BLOCK)
    assert memory.peak == 10 * BLOCK


def test_a_bound_of_nothing_is_refused():
    with pytest.raises(ValueError, match="kv_cache_memory_bytes: 0 is not allowed"):
        KVMemory(0)


def test_the_longest_common_beginning_is_found():
    memory = KVMemory(1 << 20)
    kept = Prefixes(memory, lambda prefix: None)
    assert keep(memory, kept, text(0, 50))
    assert keep(memory, kept, [*text(0, 30), *text(100, 60)])
    assert keep(memory, kept, text(200, 50))
    found, length = kept.find([*text(0, 30), *text(100, 20), 7])
    assert length == 50
    assert found.tokens[30] == 100
    assert kept.find(text(300, 50)) is None
    assert kept.find(text(0, 10)) is None, "too short to be worth it"


def test_a_text_that_goes_on_replaces_what_it_goes_on_from():
    memory, closed = KVMemory(1 << 20), []
    kept = Prefixes(memory, lambda prefix: closed.append(len(prefix.tokens)))
    keep(memory, kept, text(0, 40))
    keep(memory, kept, text(0, 100))
    assert closed == [40]
    assert not keep(memory, kept, text(0, 60)), "all of it is kept already"
    assert len(kept) == 1
    assert memory.used == 2 * BLOCK
    assert not keep(memory, kept, text(0, 5))


def test_the_least_recently_used_goes_first():
    memory, closed = KVMemory(3 * BLOCK), []
    kept = Prefixes(memory, lambda prefix: closed.append(prefix.tokens[0]))
    for first in (0, 1000, 2000):
        keep(memory, kept, text(first, BLOCK))
    kept.find(text(0, BLOCK))
    assert keep(memory, kept, text(3000, BLOCK))
    assert closed == [1000]
    assert kept.evict()
    assert closed == [1000, 2000]
    assert kept.evict()
    assert kept.evict()
    assert not kept.evict()
    assert memory.used == 0


def test_what_is_held_by_others_is_not_evicted_for_a_text():
    memory = KVMemory(3 * BLOCK)
    kept = Prefixes(memory, lambda prefix: None)
    memory.hold("running", 2 * BLOCK)
    assert keep(memory, kept, text(0, BLOCK))
    assert not keep(memory, kept, text(1000, 2 * BLOCK))
    assert len(kept) == 1, "nothing was evicted in vain"


@pytest.mark.parametrize("a", [[], [1], [1, 2, 3], list(range(1000))])
@pytest.mark.parametrize("cut", [0, 1, 2, 500, 999])
def test_common_is_what_comparing_one_by_one_gives(a: list[int], cut: int):
    b = [*a[:cut], -1, *a[cut:]]
    known = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common(a, b) == common(b, a) == known
