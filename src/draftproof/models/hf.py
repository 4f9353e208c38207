"""The Hugging Face target: any decoder with standard attention, unchanged, behind one attention function of ours.

Rows of all feeds (prompt chunks, pending tokens, draft trees) are packed as [1, rows] and run through the stock model.
Requests meet only in its matrix products; in attention each reads its own padded KV buffer through an explicit mask.

Bits: torch's CPU attention gives a row the same bits whatever its neighbours if it is called with a boolean mask, a
multiple of 512 keys, the query heads of one KV head folded into the rows, and a multiple of query rows that depends on
the model's heads and is measured (bits.py). (Unfolded, fp32 rows change with the row count on some CPUs;
docs/decisions/0005.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from jaxtyping import Bool, Int
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..base import Feed, Scores
from ..trees import ancestors, depths, require_path
from .attention import attend
from .bits import RowPlan
from .cache import KVCache
from .support import NoCache, context_of, try_out

ATTENTION = "draftproof"


@dataclass(slots=True)
class HFSession:
    cache: KVCache
    feed: Feed | None = None


@dataclass(slots=True)
class _Span:
    """Consecutive rows of one feed in a tile: rows lo..hi − 1 of the tile, written to slots start.. of the cache."""

    cache: KVCache
    lo: int
    hi: int
    start: int
    query_positions: Int[np.ndarray, " n"]
    key_positions: Int[np.ndarray, " s"]
    visible: Bool[np.ndarray, "n s"]
    _masks: dict[tuple[int, int | None], torch.Tensor] = field(default_factory=dict)

    def mask(self, rows: int, groups: int, window: int | None, device: torch.device) -> torch.Tensor:
        """[1, 1, groups·rows, slots], the rows beyond hi − lo seeing everything (their results are thrown away)."""
        if (groups, window) not in self._masks:
            visible = self.visible
            if window is not None:
                visible = visible & (self.key_positions > self.query_positions[:, None] - window)
            full = np.ones((rows, visible.shape[1]), dtype=bool)
            full[: len(visible)] = visible
            folded = torch.from_numpy(np.tile(full, (groups, 1))).to(device)
            self._masks[groups, window] = folded[None, None]
        return self._masks[groups, window]


@dataclass(slots=True)
class Packing:
    """What our attention function must know of the forward under way. Travels through the model as a keyword."""

    spans: list[_Span]
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
    _, heads, rows, size = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    out = query.new_zeros(1, rows, heads, value.shape[-1])
    for span in draftproof.spans:
        n = span.hi - span.lo
        keys, values = span.cache.write(
            module.layer_idx, span.start, key[0, :, span.lo : span.hi], value[0, :, span.lo : span.hi]
        )
        padded = draftproof.plan.padded_queries(n)
        # rows after the span's may be another request's: harmless, a row's result depends on its own query alone
        q = query[:, :, span.lo : span.lo + padded]
        if q.shape[2] < padded:
            q = F.pad(q, (0, 0, 0, padded - q.shape[2]))
        q = q.reshape(1, kv_heads, groups * padded, size)
        mask = span.mask(padded, groups, sliding_window, query.device)
        o = attend(q, keys[None], values[None], mask, scaling, softcap, draftproof.plan.kv_step)
        out[0, span.lo : span.hi] = o.reshape(heads, padded, -1)[:, :n].transpose(0, 1)
    return out, None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)


class HFTarget:
    """A transformers causal language model as a `Target`. Feeds of any shape and any number of sessions at once."""

    def __init__(self, model: PreTrainedModel, plan: RowPlan) -> None:
        try_out(model)  # refuses what cannot be driven
        model.set_attn_implementation(ATTENTION)
        self.model = model.eval()
        self.plan = plan
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.max_context = context_of(config)

    def open(self, capacity: int) -> HFSession:
        return HFSession(KVCache(capacity, self.plan.kv_step))

    def cached(self, session: HFSession) -> int:
        return session.cache.length

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        """One packed forward (more if there are more rows than the plan allows at once)."""
        rows = [(i, row) for i, feed in enumerate(feeds) for row in range(len(feed.tokens))]
        layouts = [_Layout(feed, self.plan.kv_step) for feed in feeds]
        longest = max((int(layout.positions.max()) + 1 for layout in layouts if len(layout.positions)), default=0)
        if longest > self.max_context:
            raise ValueError(f"context: {longest} tokens, the model takes {self.max_context}")
        for feed in feeds:
            feed.session.feed = feed
        found: list[list[torch.Tensor]] = [[] for _ in feeds]
        for at in range(0, len(rows), self.plan.most):
            self._run(feeds, layouts, rows[at : at + self.plan.most], found)
        return [Scores(self._to_numpy(logits)) for logits in found]

    def _run(
        self,
        feeds: Sequence[Feed],
        layouts: Sequence[_Layout],
        rows: list[tuple[int, int]],
        found: list[list[torch.Tensor]],
    ) -> None:
        """One tile: its rows through the model, the wanted logits appended to `found`, a feed each."""
        tokens = [feeds[i].tokens[row] for i, row in rows]
        positions = [int(layouts[i].positions[row]) for i, row in rows]
        wanted = [at for at, (i, row) in enumerate(rows) if row in layouts[i].wanted]
        spare = self.plan.padded(len(rows)) - len(rows)
        index = wanted + [0] * (self.plan.padded(len(wanted)) - len(wanted))
        device = self.model.device
        logits = self.model(
            input_ids=torch.tensor([tokens + [0] * spare], device=device),
            position_ids=torch.tensor([positions + [0] * spare], device=device),
            cache=NoCache(),
            use_cache=True,
            logits_to_keep=torch.tensor(index, dtype=torch.long, device=device),
            draftproof=Packing(_spans(layouts, rows), self.plan),
        ).logits[0]
        for at, row in zip(wanted, logits, strict=False):
            found[rows[at][0]].append(row)

    def _to_numpy(self, logits: list[torch.Tensor]) -> np.ndarray:
        if not logits:
            return np.zeros((0, self.vocab_size), dtype=np.float32)
        return torch.stack(logits).float().cpu().numpy()

    def commit(self, sessions: Sequence[HFSession], paths: Sequence[Sequence[int]]) -> None:
        for session, path in zip(sessions, paths, strict=True):
            feed = session.feed
            if feed is None:
                raise ValueError("commit: nothing was fed to this session since its last commit")
            require_path(feed.parents, path)
            base = session.cache.length + feed.committed
            session.cache.compact(base, path)
            session.cache.length = base + len(path)
            session.feed = None

    def truncate(self, session: HFSession, length: int) -> None:
        session.cache.length = min(session.cache.length, length)


class _Layout:
    """Where the rows of one feed stand: position ids, cache slots, and what each may see."""

    def __init__(self, feed: Feed, kv_step: int) -> None:
        self.cache: KVCache = feed.session.cache
        self.start = self.cache.length
        self.base = self.start + feed.committed  # slots below are the committed text's; node j's is base + j
        self.wanted = frozenset(feed.wanted)
        self.positions = np.array(
            [*range(self.start, self.base), *(self.base - 1 + depth for depth in depths(feed.parents))], dtype=np.int64
        )
        self._ancestors = ancestors(feed.parents)
        self._kv_step = kv_step

    def span(self, first: int, last: int, lo: int) -> _Span:
        """Feed rows first..last − 1, standing at rows lo.. of a tile."""
        slots = -(-(self.start + last) // self._kv_step) * self._kv_step
        key_positions = np.arange(slots)
        key_positions[self.start : self.start + last] = self.positions[:last]
        rows = np.arange(first, last)
        visible = np.arange(slots) <= np.minimum(self.start + rows, self.base - 1)[:, None]
        nodes = rows[rows >= self.base - self.start] - (self.base - self.start)
        if len(nodes):
            seen = nodes[-1] + 1
            visible[-len(nodes) :, self.base : self.base + seen] = self._ancestors[nodes, :seen]
        return _Span(
            cache=self.cache,
            lo=lo,
            hi=lo + last - first,
            start=self.start + first,
            query_positions=self.positions[first:last],
            key_positions=key_positions,
            visible=visible,
        )


def _spans(layouts: Sequence[_Layout], rows: Sequence[tuple[int, int]]) -> list[_Span]:
    """The tile's rows, as (feed, row), grouped into one span a feed."""
    spans, lo = [], 0
    while lo < len(rows):
        feed, first = rows[lo]
        hi = lo
        while hi < len(rows) and rows[hi][0] == feed:
            hi += 1
        spans.append(layouts[feed].span(first, first + hi - lo, lo))
        lo = hi
    return spans
