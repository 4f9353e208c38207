"""The Hugging Face target: any decoder with standard attention, unchanged, behind one attention function of ours.

Rows of all feeds (prompt chunks, pending tokens, draft trees) are packed as [1, rows] and run through the stock model.
Requests meet only in its matrix products; in attention each reads its own padded KV buffer through an explicit mask.

Bits: torch's CPU attention gives a row the same bits whatever its neighbours if it is called with an explicit mask, a
multiple of 512 keys, the query heads of one KV head folded into the rows, and a multiple of query rows that depends on
the model's heads and is measured (bits.py). (Unfolded, fp32 rows change with the row count on some CPUs;
docs/decisions/0005.) It adds up keys by the slots they are in, so a tree's paths are read where text would be
(layout.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..base import Feed, Scores
from ..trees import require_path
from .arena import PAGE, KVArena, arena
from .attention import attend
from .bits import KV_STEP, RowPlan
from .cache import KVCache
from .features import Ear, Heard, Tape
from .feeds import require_known
from .layout import Bough, Layout, Span, boughs_of, positions_of, spans_of, tiles_of
from .shallow import first_layers
from .support import Call, NoCache, context_of, try_out
from .together import Branches, Neighbours, branches_of, neighbours_of

ATTENTION = "draftproof"

_BLOCK = 64
_SOLO = 16  # rows of the arena beyond those asked for: requests that somebody runs beside the engine


@dataclass(slots=True)
class HFSession:
    """over: its cache is another session's, who alone commits. heard: hidden states, if a drafter follows it."""

    cache: KVCache
    feed: Feed | None = None
    over: bool = False
    heard: Heard | None = None

    @property
    def last(self) -> Feed | None:
        """What it was fed last, while the cache still holds those rows."""
        return self.feed if self.cache.wrote is self.feed else None

    def require_own(self, what: str) -> None:
        if self.over:
            raise ValueError(f"{what}: this session reads what another has cached, and leaves it as it is")


@dataclass(slots=True)
class Packing:
    """What our attention function must know of the forward under way. Travels through the model as a keyword."""

    alone: Sequence[Span]
    together: Sequence[Neighbours | Branches]
    boughs: Sequence[Bough]
    plan: RowPlan


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    draftproof: Packing | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, rows, size], key and value [1, kv_heads, rows, size] -> ([1, rows, heads, size], None)."""
    if draftproof is None:
        raise ValueError("attention 'draftproof': this model is driven by draftproof; call it through HFTarget")
    heads, rows = query.shape[1:3]
    groups, step = heads // key.shape[1], max(draftproof.plan.kv_step, KV_STEP)
    parts, places, whole = [], [], False
    for span in draftproof.alone:  # before the neighbours: the last rows of a long piece may be among those
        at = slice(span.lo, span.lo + span.rows)
        keys, values = span.layout.cache.write(module.layer_idx, span.start, key[0, :, at], value[0, :, at])
        mask = span.mask(query, groups, sliding_window)
        o = attend(_folded(query, span, groups), keys[None], values[None], mask, scaling, softcap, step)
        parts.append(o.view(heads, span.size, -1).transpose(0, 1)[: span.rows])
        places.append(at)
    for some in draftproof.together:
        keys, values = some.write(module.layer_idx, key[0], value[0])
        mask = some.mask(query, groups, sliding_window)
        o = attend(_gathered(query, some, groups), keys, values, mask, scaling, softcap, step)
        o = o.view(len(some.members), heads, some.size, -1).transpose(1, 2).flatten(0, 1)
        whole = isinstance(some, Branches) and some.alone and len(draftproof.together) == 1 and not parts
        parts.append(o.index_select(0, some.in_tile(rows) if whole else some.results))
        places.append(some.rows)
    for bough in draftproof.boughs:  # its branches are through
        bough.settle(module.layer_idx, key[0], value[0])
    if len(parts) == 1 and len(parts[0]) == rows and (whole or not draftproof.together):
        return parts[0][None], None
    out = parts[0].new_zeros(rows, *parts[0].shape[1:])
    for place, part in zip(places, parts, strict=True):
        out[place] = part
    return out[None], None


def _folded(query: torch.Tensor, span: Span, groups: int) -> torch.Tensor:
    """[1, heads, rows, d] -> [1, kv_heads, groups·size, d], the span's rows alone.

    Rows after the span's may be another request's: harmless, a row's result depends on its own query alone.
    """
    heads, rows, width = query.shape[1:]
    end = span.lo + span.size
    q = query[:, :, span.lo : end]
    if end > rows:
        q = F.pad(q, (0, 0, 0, end - rows))
    # in one piece: the kernel treats strided queries otherwise, down to the bits
    return q.reshape(1, heads // groups, groups * span.size, width).contiguous()


def _gathered(query: torch.Tensor, some: Neighbours | Branches, groups: int) -> torch.Tensor:
    """The same for every member: [members, kv_heads, groups·size, d]. Spare rows repeat a member's last one."""
    heads, _, width = query.shape[1:]
    q = query[0].index_select(1, some.queries).view(heads // groups, groups, len(some.members), some.size, width)
    return q.permute(2, 0, 1, 3, 4).reshape(len(some.members), heads // groups, groups * some.size, width)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)


class HFTarget:
    """A transformers causal language model as a `Target`. Feeds of any shape and any number of sessions at once.

    calls: what `try_out` saw of this very model, if it was tried before.
    """

    def __init__(self, model: PreTrainedModel, plan: RowPlan, calls: Iterable[Call] | None = None) -> None:
        seen = try_out(model).calls if calls is None else calls  # refuses what cannot be driven
        calls = sorted(seen, key=lambda call: call.layer)
        self._arena: KVArena | None = None
        self._in_blocks = False
        self._ears: dict[tuple, Ear] = {}
        self._one_at_a_time = Lock()  # products that layers share remember their input
        model.set_attn_implementation(ATTENTION)
        self.model = model.eval()
        self.plan = plan
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_context = context_of(config)
        self._keep_caches_of([(call.kv_heads, call.key_size, call.value_size) for call in calls])

    def early(self, layers: int) -> EarlyTarget:
        """The first `layers` layers, the final norm and the head of this very model."""
        with self._one_at_a_time:
            return EarlyTarget(self, layers)

    def follow(self, session: HFSession, layers: Sequence[int], *, last: bool = False) -> Heard:
        """From now on keep what enters `layers` for the session's rows, until taken. last: what the head reads, too."""
        if session.heard is not None:
            raise ValueError("features: this session is followed already; one may follow it")
        key = tuple(layers), last
        if key not in self._ears:
            self._ears[key] = Ear(self.model, layers, last=last)
        session.heard = Heard(self._ears[key], session.cache.length)
        return session.heard

    def provide(self, sessions: int, tokens: int) -> None:
        """Expect so many sessions at once, of up to `tokens` tokens each: they will share their calls of attention, and
        take memory as they grow and not when they are opened."""
        longest = min(tokens, self.max_context)
        self._arena = arena(sessions + _SOLO, longest, self._shapes, self.model.dtype, self.model.device)
        self._in_blocks = True
        self._keep_caches_of(self._shapes)

    def _keep_caches_of(self, shapes: Sequence[tuple[int, int, int]]) -> None:
        """Layers' heads, and their sizes of keys and values; and what these cost, which is asked for every round."""
        self._shapes, size = shapes, self.model.dtype.itemsize
        self.kv_bytes_per_token = sum(heads * (key + value) for heads, key, value in shapes) * size
        self._page = 0 if self._arena is None else max(PAGE // (min(sizes) * size) for _, *sizes in shapes)

    def kv_cost(self, tokens: int) -> int:
        """In pages of the arena, or steps of a buffer; in blocks of at least 64 tokens, to be counted seldom."""
        block = -(-max(self._page or self.plan.kv_step, _BLOCK) // _BLOCK) * _BLOCK
        return -(-tokens // block) * block * self.kv_bytes_per_token

    def open(self, capacity: int) -> HFSession:
        return HFSession(KVCache(capacity, self.plan.kv_step, self._arena, grows=self._in_blocks))

    def close(self, session: HFSession) -> None:
        if not session.over:
            session.cache.close()
        session.feed = None

    def keep(self, session: HFSession) -> HFSession:
        kept = HFSession(KVCache(session.cache.length, 1))
        kept.cache.copy(session.cache, session.cache.length)
        return kept

    def adopt(self, session: HFSession, donor: HFSession, length: int) -> None:
        session.require_own("adopt")
        session.cache.copy(donor.cache, length)
        if session.heard is not None:  # what the donor's rows said, whoever followed it has
            session.heard.start = length

    def check(self, session: HFSession, tokens: Sequence[int]) -> str | None:
        """By computing all of it again; bit for bit where the plan keeps bits, else the lengths alone. After a tree
        that grew, which keeps no bits, the first layer alone: it shows wrong tokens, positions and slots."""
        cached = self.cached(session)
        if cached > len(tokens):
            return f"{cached} tokens are cached and {len(tokens)} committed"
        if not cached or not self.plan.exact:
            return None
        replay = HFSession(KVCache(cached, self.plan.kv_step))
        self.forward([Feed(replay, tuple(tokens[:cached]), want=())])
        self.commit([replay], [()])
        layer = session.cache.differs(replay.cache)
        return None if layer is None else f"the cache of layer {layer} is not that of a replay"

    def cached(self, session: HFSession) -> int:
        return session.cache.length

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        """One packed forward (more if there are more rows than the plan allows at once)."""
        with self._one_at_a_time:
            return self._forward(feeds)

    def _forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        for feed in feeds:
            require_known(feed, feed.session.last)
        layouts = [Layout(feed, self.plan.exact) for feed in feeds]
        longest = max((layout.longest for layout in layouts), default=0)
        if longest > self.max_context:
            raise ValueError(f"context: {longest} tokens, the model takes {self.max_context}")
        for layout in layouts:
            layout.cache.require_room(layout.start + layout.rows)
        for feed in feeds:
            if not feed.known:
                feed.session.cache.wrote = None
        found: list[_Found] = [[] for _ in feeds]
        tape = Tape([feed.session.heard for feed in feeds])
        for tile in tiles_of([(layout.known, layout.rows) for layout in layouts], self.plan.most):
            with tape.listening(tile):
                self._run(layouts, tile, found)
        for feed in feeds:
            feed.session.feed = feed.session.cache.wrote = feed
        tape.hand_out(layouts)
        none = np.zeros((0, self.vocab_size), np.float32)
        return [Scores(_in_feed_order(parts) if parts else none) for parts in found]

    def _run(self, layouts: Sequence[Layout], tile: list[tuple[int, int, int]], found: list[_Found]) -> None:
        """One tile: its rows through the model, the wanted logits appended to `found`, a feed each."""
        padded = self.plan.padded(sum(last - first for _, first, last in tile))
        branches, spans = branches_of(spans_of(layouts, tile, self.plan), self.plan)
        neighbours, alone = neighbours_of(spans, self.plan)
        wanted, index, lo = [], [], 0
        for feed, first, last in tile:
            rows, run_as = layouts[feed].wanted(first, last)
            wanted.append((feed, rows))
            index += [lo + at - first for at in run_as]
            lo += last - first
        keep = index + [0] * (self.plan.padded(len(index)) - len(index))
        device = self.model.device
        tokens, positions = positions_of(layouts, tile, padded)
        logits: torch.Tensor = self.model(
            input_ids=tokens.to(device),
            position_ids=positions.to(device),
            cache=NoCache(),
            use_cache=True,
            logits_to_keep=torch.tensor(keep, dtype=torch.long, device=device),
            draftproof=Packing(alone, [*branches, *neighbours], boughs_of(layouts, tile), self.plan),
        ).logits[0]
        at, numbers = 0, logits.float().cpu().numpy()  # the one place where logits leave torch
        for feed, rows in wanted:
            if rows:
                found[feed].append((rows, numbers[at : at + len(rows)]))
                at += len(rows)

    def commit(self, sessions: Sequence[HFSession], paths: Sequence[Sequence[int]]) -> None:
        for session, path in zip(sessions, paths, strict=True):
            session.require_own("commit")
            feed, cache = session.feed, session.cache
            if feed is None:
                raise ValueError("commit: nothing was fed to this session since its last commit")
            if session.last is None:
                raise ValueError("commit: what this session was fed has been written over since, or cut off")
            require_path(feed.parents, path)
            base = cache.length + feed.committed
            cache.compact(base, path)
            if cache.sure == cache.length:
                cache.sure = base + (_straight(path) if feed.known else len(path))
            cache.length, cache.wrote = base + len(path), None
            session.feed = None
            if session.heard is not None:
                session.heard.commit(feed.committed, path, cache.length)

    def truncate(self, session: HFSession, length: int) -> None:
        session.require_own("truncate")
        session.cache.cut(length)
        if session.heard is not None:
            session.heard.cut(length)


class EarlyTarget(HFTarget):
    """The first layers of a target, its norm and its head, as a target: the same weights, lock and plan.

    A session `open_over` one of the target's reads what that has cached, and what it writes lies beyond: there the
    target's next forward writes its own. So it is fed between the target's commit and the target's next forward, and
    commits nothing. Sessions from `open` are its own.
    """

    def __init__(self, target: HFTarget, layers: int) -> None:
        self.__dict__.update(target.__dict__)
        self.model = first_layers(target.model, layers)
        self._keep_caches_of(self._shapes[:layers])

    def open_over(self, session: HFSession) -> HFSession:
        """A session that is always as long as `session`, of the target."""
        return HFSession(session.cache, over=True)


_Found = list[tuple[list[int], np.ndarray]]
"""Rows of a feed and their logits, a tile each."""


def _in_feed_order(parts: _Found) -> np.ndarray:
    """Of a tree that runs in branches, over several tiles, the rows do not come in the feed's order."""
    if len(parts) == 1:
        return parts[0][1]
    rows = [row for some, _ in parts for row in some]
    logits = np.concatenate([some for _, some in parts])
    return logits if rows == sorted(rows) else logits[np.argsort(rows)]


def _straight(path: Sequence[int]) -> int:
    """How many nodes of a path stood, when they ran under a mask, where text would."""
    return next((i for i, node in enumerate(path) if node != i), len(path))
