"""An EAGLE head at work beside its target: it reads what the target has read, and goes on alone from there.

What it keeps of a text: the fused states of every token, and the key and value of every entry (eagle.py says what an
entry is). They depend on the text alone, so texts that begin alike share them. A draft's nodes are forgotten after each
draft: their entries were made of the head's own guesses, and entries made of the target's states take their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from ..base import ROOT, Feed, Scores
from ..trees import ancestors, depths
from .eagle import FEATURES, EagleHead
from .features import Heard, read_features
from .feeds import require_known, rows_wanted
from .hf import HFSession, HFTarget

_STEP = 256  # tokens by which a session's memory grows
_FEW = 16  # rows up to which a product is quicker with the weight on the left (docs/decisions/0008)
_MANY = 512  # rows of a text that are read at once
_CLOSE = 0.05  # of a row's largest number: how much a replay may differ in bfloat16

BEHIND = 32
"""Tokens after which a head listens though nobody asks it to draft: what it has not heard yet takes memory."""


@dataclass(slots=True, eq=False)
class EagleSession:
    """Of one request. heard: what the target's session says, None for a copy that follows nobody. start: the first
    token whose states were heard; everything is counted from it.

    fused: [room, h], of which `told` are there. keys, values: [kv_heads, room, d], of which `length` are of entries
    that stay; behind them lie those of the last feed. hidden: what the last feed's rows gave, [rows, h].
    """

    heard: Heard | None
    fused: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    start: int = 0
    told: int = 0
    length: int = 0
    hidden: torch.Tensor | None = None
    feed: Feed | None = None

    @property
    def room(self) -> int:
        return len(self.fused)

    def grow(self, room: int) -> None:
        if room <= self.room:
            return
        room = max(-(-room // _STEP) * _STEP, self.room * 3 // 2)
        for name, dim in (("fused", 0), ("keys", 1), ("values", 1)):
            old = getattr(self, name)
            size = list(old.shape)
            size[dim] = room
            new = old.new_zeros(size)
            new.narrow(dim, 0, old.shape[dim]).copy_(old)
            setattr(self, name, new)

    def add(self, fused: torch.Tensor) -> None:
        self.grow(self.told + len(fused))
        self.fused[self.told : self.told + len(fused)] = fused
        self.told += len(fused)

    def begin_with(self, donor: EagleSession, told: int, length: int) -> None:
        """The donor's first states and entries, so many."""
        self.start = donor.start
        self.add(donor.fused[:told])
        self.keys[:, :length] = donor.keys[:, :length]
        self.values[:, :length] = donor.values[:, :length]
        self.length = length


class EagleRunner:
    """Runs `head` over sessions of `target`, in its dtype and on its device, for `drafters.EagleDrafter`.

    embeddings: [v, h], what the head reads tokens as; the target's own, if it brings none.
    """

    def __init__(self, target: HFTarget, head: EagleHead, embeddings: torch.Tensor | None = None) -> None:
        model = target.model
        if embeddings is None:
            embeddings = model.get_input_embeddings().weight.detach()
        self.head = head.to(model.device, model.dtype).eval().requires_grad_(False)
        self.vocab_size, self.max_context = target.vocab_size, target.max_context
        self._target, self._embeds = target, embeddings.to(model.device, model.dtype)
        layer, own = head.layers[0], head.layers[0].self_attn
        self._qkv = _stacked([own.q_proj, own.k_proj, own.v_proj])
        self._gate_up = _stacked([layer.mlp.gate_proj, layer.mlp.up_proj])
        self._ids = head.token_ids.cpu().numpy()
        self._turns = torch.empty(0, 0)
        self._turn_to(_STEP)

    # sessions

    @torch.inference_mode()
    def open_over(self, session: HFSession) -> EagleSession:
        """Follow a session of the target's, from now on: what it has read before is not heard."""
        heard = self._target.follow(session, self.head.config.feature_layers)
        return self._session(heard, heard.start)

    def _session(self, heard: Heard | None, start: int) -> EagleSession:
        own = self.head.layers[0].self_attn
        fused, keys = (
            self._embeds.new_empty(0, self._embeds.shape[1]),
            self._embeds.new_empty(own.kv_heads, 0, own.size),
        )
        return EagleSession(heard, fused, keys, keys, start)

    @torch.inference_mode()
    def open(self, capacity: int) -> EagleSession:
        """One that follows nobody, and takes every state for 0: to measure with, as any model."""
        session = self._session(None, 0)
        session.add(self._embeds.new_zeros(capacity, self._embeds.shape[1]))
        return session

    @property
    def traits(self) -> list[str]:
        """What its costs depend on."""
        shapes = [tuple(weight.shape) for weight in self.head.state_dict().values()]
        return [repr(shapes), str(self._embeds.dtype), str(self._embeds.device)]

    @torch.inference_mode()
    def hear(self, sessions: Sequence[EagleSession]) -> list[int]:
        """Take in what the target has read since. Returns how many tokens of each text are known."""
        new = [(session, states) for session in sessions if (states := _heard(session)) is not None]
        if new:
            fused = _times(self.head.fc.weight, torch.cat([states for _, states in new]))
            for (session, _), own in zip(new, fused.split([len(states) for _, states in new]), strict=True):
                session.add(own)
        return [session.start + session.told for session in sessions]

    @property
    def behind(self) -> int:
        return BEHIND

    def cached(self, session: EagleSession) -> int:
        """The first token of the text whose entry is missing."""
        return session.start + session.length

    def truncate(self, session: EagleSession, length: int) -> None:
        session.length = min(session.length, max(length - session.start, 0))
        session.feed = session.hidden = None

    def commit(self, sessions: Sequence[EagleSession], paths: Sequence[Sequence[int]]) -> None:
        """Keep the committed rows of the last feed. Its nodes are forgotten, so every path must be ()."""
        for session, path in zip(sessions, paths, strict=True):
            if path:
                raise ValueError(f"commit: a head keeps no nodes; path is {tuple(path)}, it must be ()")
            if session.feed is not None:
                session.length += session.feed.committed
            session.feed = session.hidden = None

    def kv_cost(self, tokens: int) -> int:
        own = self.head.layers[0].self_attn
        numbers = 2 * own.kv_heads * own.size + self.head.config.hidden_size
        kept = (tokens * 3 // 2 + 2 * _STEP) // _STEP * _STEP * numbers
        unheard = FEATURES * self.head.config.hidden_size * BEHIND
        return (kept + unheard) * self._embeds.dtype.itemsize

    @torch.inference_mode()
    def close(self, session: EagleSession) -> None:
        fresh = self._session(None, 0)
        session.fused, session.keys, session.values = fresh.fused, fresh.keys, fresh.values
        session.told = session.length = 0
        session.feed = session.hidden = None

    @torch.inference_mode()
    def keep(self, session: EagleSession) -> EagleSession:
        self.hear([session])
        kept = self._session(None, session.start)
        kept.begin_with(session, session.told, session.length)
        return kept

    @torch.inference_mode()
    def adopt(self, session: EagleSession, donor: EagleSession, length: int) -> None:
        """Begin with what `donor` knows of the text's first `length` tokens; with nothing unless it knows the last of
        them, as states cannot be had later."""
        [known] = self.hear([donor])
        if known < length or donor.start >= length:
            session.start = length
            return
        told = length - donor.start
        session.begin_with(donor, told, min(donor.length, told - 1))  # the last entry is made of the next token, too

    @torch.inference_mode()
    def check(self, session: EagleSession, tokens: Sequence[int]) -> str | None:
        """By computing all of it again. Numbers are compared, not bits: those depend on how many rows ran at once."""
        [known], start = self.hear([session]), session.start
        if known > len(tokens) - 1 or self.cached(session) > len(tokens) - 1:
            return (
                f"{known} tokens and {self.cached(session)} entries are known, and {len(tokens)} tokens are committed"
            )
        if not session.told:
            return None
        [(states, _)] = read_features(self._target, [tokens[:known]], self.head.config.feature_layers)
        replay = self._session(None, start)
        replay.add(_times(self.head.fc.weight, states[start:]))
        if session.length:
            self.forward([Feed(replay, tuple(tokens[start + 1 : start + 1 + session.length]), want=())])
        pairs = {
            "states": (session.fused[: session.told], replay.fused[: session.told]),
            "keys": (session.keys[:, : session.length], replay.keys[:, : session.length]),
            "values": (session.values[:, : session.length], replay.values[:, : session.length]),
        }
        wrong = [name for name, (mine, theirs) in pairs.items() if not _alike(mine, theirs)]
        return f"its {', '.join(wrong)} are not those of a replay" if wrong else None

    # forwards

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed]) -> list[Scores]:
        """As a target's, over entries: a committed token stands for the entry of the token before it, whose true states
        it meets; a node meets what the head itself said at its parent."""
        for feed in feeds:
            session: EagleSession = feed.session
            require_known(feed, session.feed)
            if session.length + feed.committed > session.told:
                raise ValueError(f"feed: {feed.committed} committed tokens, and the target has not read so far")
            session.grow(session.length + len(feed.tokens))
            if not feed.known or session.hidden is None:
                session.hidden = self._embeds.new_empty(0, self._embeds.shape[1])
        for turn in _turns(feeds):
            self._run(turn)
        for feed in feeds:
            feed.session.feed = feed
        wanted = [rows_wanted(feed) for feed in feeds]
        picked = [feed.session.hidden[rows] for feed, rows in zip(feeds, wanted, strict=True)]
        logits = self._widened(torch.cat(picked))
        ends = np.cumsum([len(rows) for rows in wanted])
        return [Scores(logits[end - len(rows) : end]) for rows, end in zip(wanted, ends, strict=True)]

    def _run(self, rows: Sequence[_Rows]) -> None:
        """Rows of several feeds, none of which needs another, through the layer."""
        layer = self.head.layers[0]
        attention, eps = layer.self_attn, self.head.config.layer.rms_norm_eps
        tokens = [token for each in rows for token in each.tokens]
        hidden = torch.cat([each.below() for each in rows]) if len(rows) > 1 else rows[0].below()
        normed = _rms(hidden, layer.hidden_norm.weight, eps)
        embeds = _rms(self._embeds[torch.tensor(tokens)], layer.input_layernorm.weight, eps)
        heads, kv_heads, size = attention.heads, attention.kv_heads, attention.size
        qkv = _times(self._qkv, torch.cat([embeds, normed], 1)).view(len(tokens), -1, size)
        turned = self._turned(qkv[:, : heads + kv_heads], [position for each in rows for position in each.positions])
        query, key, value = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]
        seen, lo = [], 0
        for each in rows:
            at = slice(lo, lo + len(each.tokens))
            seen.append(_attention(each, query[at], key[at], value[at]))
            lo = at.stop
        mixed = torch.cat(seen) if len(seen) > 1 else seen[0]
        hidden = (normed if self.head.config.norm_before_residual else hidden) + _times(attention.o_proj.weight, mixed)
        gate, up = _times(self._gate_up, _rms(hidden, layer.post_attention_layernorm.weight, eps)).chunk(2, 1)
        hidden = hidden + _times(layer.mlp.down_proj.weight, layer.mlp.act_fn(gate) * up)
        lo = 0
        for each in rows:
            session = each.feed.session
            session.hidden = torch.cat([session.hidden, hidden[lo : lo + len(each.tokens)]])
            lo += len(each.tokens)

    def _widened(self, hidden: torch.Tensor) -> np.ndarray:
        """Logits over the target's ids, [n, v]: −inf for those that the head does not know."""
        wide = np.full((len(hidden), self.vocab_size), -np.inf, np.float32)
        if len(hidden):
            normed = _rms(hidden, self.head.norm.weight, self.head.config.layer.rms_norm_eps)
            said = _times(self.head.lm_head.weight, normed).float().cpu().numpy()
            said[~np.isfinite(said).all(1)] = 0  # a head that overflows guesses at random, and ends no request
            wide[:, self._ids] = said
        return wide

    def _turned(self, heads: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """Rotary positions put in, [n, heads, d]."""
        if max(positions) >= self._turns.shape[1]:
            self._turn_to(2 * max(positions))
        cos, sin = self._turns[:, torch.tensor(positions), None]
        half = heads.shape[-1] // 2
        return heads * cos + torch.cat([-heads[..., half:], heads[..., :half]], -1) * sin

    def _turn_to(self, positions: int) -> None:
        every = self.head.rotations(torch.arange(positions, device=self._embeds.device))
        self._turns = torch.stack([part[0] for part in every])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows first..last − 1 of a feed, all committed or all nodes whose parents have run."""

    feed: Feed
    first: int
    last: int
    positions: tuple[int, ...]  # of their entries in the text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.feed.tokens[self.first : self.last]

    def below(self) -> torch.Tensor:
        """What they are made of besides their tokens, [n, h]."""
        session, committed = self.feed.session, self.feed.committed
        if self.first < committed:
            return session.fused[session.length + self.first : session.length + self.last]
        parents = self.feed.parents[self.first - committed : self.last - committed]
        return session.hidden[[committed - 1 if node == ROOT else committed + node for node in parents]]

    def mask(self) -> torch.Tensor | None:
        """bool [n, slots], what each sees of the slots up to its last row's; None: everything."""
        base, committed, count = self.feed.session.length, self.feed.committed, self.last - self.first
        if self.first < committed:
            own = torch.arange(base + self.first, base + self.last)[:, None]
            return None if count == 1 else torch.arange(base + self.last) <= own
        nodes = slice(self.first - committed, self.last - committed)
        known = ancestors(self.feed.parents[: nodes.stop])[nodes]
        if known.all():
            return None
        seen = torch.ones(count, base + self.last, dtype=torch.bool)
        seen[:, base + committed :] = torch.from_numpy(known)
        return seen


def _turns(feeds: Sequence[Feed]) -> Iterator[list[_Rows]]:
    """The rows that are new, in the turns in which they can run: committed ones, then nodes level by level."""
    turns: dict[int, list[_Rows]] = {}
    for feed in feeds:
        session, committed = feed.session, feed.committed
        at = session.start + session.length
        for first in range(feed.known, committed, _MANY):
            last = min(first + _MANY, committed)
            place = (first - feed.known) // _MANY - committed // _MANY - 1  # before any node
            turns.setdefault(place, []).append(_Rows(feed, first, last, tuple(range(at + first, at + last))))
        levels = depths(feed.parents)
        first = max(feed.known, committed)
        for row in range(first + 1, len(feed.tokens) + 1):
            if row == len(feed.tokens) or levels[row - committed] != levels[first - committed]:
                if first < row:
                    level = levels[first - committed]
                    place = (at + committed - 1 + level,) * (row - first)
                    turns.setdefault(level, []).append(_Rows(feed, first, row, place))
                first = row
    yield from (turns[turn] for turn in sorted(turns))


def _attention(rows: _Rows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """query [n, heads, d], key and value [n, kv_heads, d], which are written first -> [n, heads · d]."""
    session = rows.feed.session
    first, end = session.length + rows.first, session.length + rows.last
    session.keys[:, first:end], session.values[:, first:end] = key.transpose(0, 1), value.transpose(0, 1)
    (count, heads, size), kv_heads = query.shape, key.shape[1]
    q = query.transpose(0, 1).reshape(1, kv_heads, heads // kv_heads * count, size)  # a group's heads as rows
    mask = rows.mask()
    seen = None if mask is None else mask.repeat(heads // kv_heads, 1)[None, None].to(q.device)
    o = F.scaled_dot_product_attention(q, session.keys[None, :, :end], session.values[None, :, :end], attn_mask=seen)
    return o.view(heads, count, size).transpose(0, 1).reshape(count, heads * size)


def _heard(session: EagleSession) -> torch.Tensor | None:
    """New states, [n, f]; what is kept is cut to where they begin."""
    if session.heard is None:
        return None
    start, states = session.heard.take()
    known = session.start + session.told
    if session.start < start < known:  # the text was cut there; the last entry left was made of the token behind it
        session.told = start - session.start
        session.length = min(session.length, session.told - 1)
    elif start != known:  # what lies between was never heard: begin here
        session.start, session.told, session.length = start, 0, 0
    return states


def _stacked(layers: Sequence[Any]) -> torch.Tensor:
    """Their weights in one, of which theirs are views from now on."""
    every = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, every.split([len(layer.weight) for layer in layers]), strict=True):
        layer.weight.data = part
    return every


def _times(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[n, k] -> [n, outputs]."""
    if len(x) <= _FEW and x.dtype is torch.bfloat16 and x.device.type == "cpu":
        return torch.mm(weight, x.t()).t().contiguous()
    return F.linear(x, weight)


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _alike(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Every row, by its own largest number."""
    bound = _CLOSE * theirs.abs().amax(-1)
    return bool(((mine - theirs).abs().amax(-1) <= bound).all())
