"""The Hugging Face target: any decoder with standard attention, unchanged, behind one attention function of ours.

Rows of all feeds (prompt chunks, pending tokens, draft trees) are packed as [1, rows] and run through the stock model.
Requests meet only in its matrix products; in attention each reads its own padded KV buffer through an explicit mask.

Bits: torch's CPU attention gives a row the same bits whatever its neighbours if it is called with an explicit mask, a
multiple of 512 keys, the query heads of one KV head folded into the rows, and a multiple of query rows that depends on
the model's heads and is measured (bits.py). (Unfolded, fp32 rows change with the row count on some CPUs;
docs/decisions/0005.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..base import Feed, Scores
from ..trees import require_path
from .attention import attend
from .bits import KV_STEP, RowPlan
from .cache import KVCache
from .layout import Layout, Span, positions_of, spans_of, tiles_of
from .support import NoCache, context_of, try_out

ATTENTION = "draftproof"


@dataclass(slots=True)
class HFSession:
    cache: KVCache
    feed: Feed | None = None


@dataclass(slots=True)
class Packing:
    """What our attention function must know of the forward under way. Travels through the model as a keyword."""

    spans: list[Span]
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
    rows, plan = query.shape[2], draftproof.plan
    groups = query.shape[1] // key.shape[1]
    parts = []
    for span in draftproof.spans:
        at = slice(span.lo, span.lo + span.rows)
        keys, values = span.layout.cache.write(module.layer_idx, span.start, key[0, :, at], value[0, :, at])
        mask = span.mask(query, groups, sliding_window)
        q = _folded(query, span, groups)
        o = attend(q, keys[None], values[None], mask, scaling, softcap, max(plan.kv_step, KV_STEP))
        parts.append(o.view(query.shape[1], span.size, -1).transpose(0, 1)[: span.rows])
    spare = rows - sum(len(part) for part in parts)
    if spare:
        parts.append(parts[0].new_zeros(spare, *parts[0].shape[1:]))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


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
        layouts = [Layout(feed) for feed in feeds]
        longest = max((layout.longest for layout in layouts), default=0)
        if longest > self.max_context:
            raise ValueError(f"context: {longest} tokens, the model takes {self.max_context}")
        for feed in feeds:
            feed.session.feed = feed
        found: list[list[torch.Tensor]] = [[] for _ in feeds]
        for tile in tiles_of([len(feed.tokens) for feed in feeds], self.plan.most):
            self._run(layouts, tile, found)
        return [Scores(self._to_numpy(logits)) for logits in found]

    def _run(
        self, layouts: Sequence[Layout], tile: list[tuple[int, int, int]], found: list[list[torch.Tensor]]
    ) -> None:
        """One tile: its rows through the model, the wanted logits appended to `found`, a feed each."""
        padded = self.plan.padded(sum(last - first for _, first, last in tile))
        spans = spans_of(layouts, tile, self.plan)
        wanted = [
            [span.lo + row - span.first for row in span.layout.wanted if span.first <= row < span.last]
            for span in spans
        ]
        index = [row for rows in wanted for row in rows]
        keep = index + [0] * (self.plan.padded(len(index)) - len(index))
        device = self.model.device
        tokens, positions = positions_of(layouts, tile, padded)
        logits = self.model(
            input_ids=tokens.to(device),
            position_ids=positions.to(device),
            cache=NoCache(),
            use_cache=True,
            logits_to_keep=torch.tensor(keep, dtype=torch.long, device=device),
            draftproof=Packing(spans, self.plan),
        ).logits[0]
        at = 0
        for span, rows in zip(spans, wanted, strict=True):
            if rows:
                found[layouts.index(span.layout)].append(logits[at : at + len(rows)])
                at += len(rows)

    def _to_numpy(self, logits: list[torch.Tensor]) -> np.ndarray:
        """The one place that decides how logits leave torch: float32, the model's own memory where it has them so."""
        if not logits:
            return np.zeros((0, self.vocab_size), dtype=np.float32)
        rows = logits[0] if len(logits) == 1 else torch.cat(logits)
        return rows.float().cpu().numpy()

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
