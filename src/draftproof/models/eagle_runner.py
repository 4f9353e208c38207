"""An EAGLE head at work beside its target: it reads what the target has read, and goes on alone from there.

What it keeps of a text: the fused states of every token, and the key and value of every entry (eagle.py says what an
entry is). They depend on the text alone, so texts that begin alike share them. A draft's nodes are forgotten after each
draft: their entries were made of the head's own guesses, and entries made of the target's states take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from ..base import Feed, Scores
from .eagle import FEATURES, EagleHead
from .eagle_rows import Rows, looked_up, turns_of
from .eagle_session import STEP, EagleSession, heard_by
from .features import Heard, read_features
from .feeds import require_known, rows_wanted
from .hf import HFSession, HFTarget
from .quantised import rounded

_FEW = 16  # rows up to which a product is quicker with the weight on the left (docs/decisions/0008)
_CLOSE = 0.05  # of a row's largest number: how much a replay may differ in bfloat16

BEHIND = 32
"""Tokens after which a head listens though nobody asks it to draft: what it has not heard yet takes memory."""


class EagleRunner:
    """Runs `head` over sessions of `target`, in its dtype and on its device, for `drafters.EagleDrafter`.

    embeddings: [v, h], what the head reads tokens as; the target's own, if it brings none. quantization: int8 or int4,
    of its weights (quantised.py): less to read a step.
    """

    def __init__(
        self,
        target: HFTarget,
        head: EagleHead,
        embeddings: torch.Tensor | None = None,
        quantization: str | None = None,
    ) -> None:
        model = target.model
        if embeddings is None:
            embeddings = model.get_input_embeddings().weight.detach()
        self.head = head.to(model.device, model.dtype).eval().requires_grad_(False)
        self.vocab_size, self.max_context = target.vocab_size, target.max_context
        self._target, self._embeds = target, embeddings.to(model.device, model.dtype)
        layer, own = head.layers[0], head.layers[0].self_attn
        weights = {
            "fc": head.fc.weight,
            "qkv": _stacked([own.q_proj, own.k_proj, own.v_proj]),
            "o": own.o_proj.weight,
            "gate_up": _stacked([layer.mlp.gate_proj, layer.mlp.up_proj]),
            "down": layer.mlp.down_proj.weight,
            "lm_head": head.lm_head.weight,
        }
        self.quantization = quantization
        self._products = _products(weights, quantization)
        self._ids = head.token_ids.cpu().numpy()
        self._turns = torch.empty(0, 0)
        self._turn_to(STEP)

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
        return [repr(shapes), str(self._embeds.dtype), str(self._embeds.device), str(self.quantization)]

    @torch.inference_mode()
    def hear(self, sessions: Sequence[EagleSession]) -> list[int]:
        """Take in what the target has read since. Returns how many tokens of each text are known."""
        new = [(session, states) for session in sessions if (states := heard_by(session)) is not None]
        if new:
            fused = self._products["fc"](torch.cat([states for _, states in new]))
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
        kept = (tokens * 3 // 2 + 2 * STEP) // STEP * STEP * numbers
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
        replay.add(self._products["fc"](states[start:]))
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
        for turn in turns_of(feeds):
            self._run(turn)
        for feed in feeds:
            feed.session.feed = feed
        wanted = [rows_wanted(feed) for feed in feeds]
        picked = [feed.session.hidden[rows] for feed, rows in zip(feeds, wanted, strict=True)]
        logits = self._widened(torch.cat(picked))
        ends = np.cumsum([len(rows) for rows in wanted])
        return [Scores(logits[end - len(rows) : end]) for rows, end in zip(wanted, ends, strict=True)]

    def _run(self, rows: Sequence[Rows]) -> None:
        """Rows of several feeds, none of which needs another, through the layer."""
        layer = self.head.layers[0]
        attention, eps = layer.self_attn, self.head.config.layer.rms_norm_eps
        tokens = [token for each in rows for token in each.tokens]
        hidden = torch.cat([each.below() for each in rows]) if len(rows) > 1 else rows[0].below()
        normed = _rms(hidden, layer.hidden_norm.weight, eps)
        embeds = _rms(self._embeds[torch.tensor(tokens)], layer.input_layernorm.weight, eps)
        heads, kv_heads, size = attention.heads, attention.kv_heads, attention.size
        qkv = self._products["qkv"](torch.cat([embeds, normed], 1)).view(len(tokens), -1, size)
        turned = self._turned(qkv[:, : heads + kv_heads], [position for each in rows for position in each.positions])
        query, key, value = turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :]
        seen, lo = [], 0
        for each in rows:
            at = slice(lo, lo + len(each.tokens))
            seen.append(looked_up(each, query[at], key[at], value[at]))
            lo = at.stop
        mixed = torch.cat(seen) if len(seen) > 1 else seen[0]
        hidden = (normed if self.head.config.norm_before_residual else hidden) + self._products["o"](mixed)
        gate, up = self._products["gate_up"](_rms(hidden, layer.post_attention_layernorm.weight, eps)).chunk(2, 1)
        hidden = hidden + self._products["down"](layer.mlp.act_fn(gate) * up)
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
            said = self._products["lm_head"](normed).float().cpu().numpy()
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


def _stacked(layers: Sequence[Any]) -> torch.Tensor:
    """Their weights in one, of which theirs are views from now on."""
    every = torch.cat([layer.weight.detach() for layer in layers])
    for layer, part in zip(layers, every.split([len(layer.weight) for layer in layers]), strict=True):
        layer.weight.data = part
    return every


Product = Callable[[torch.Tensor], torch.Tensor]
"""[n, inputs] -> [n, outputs]"""


def _products(weights: Mapping[str, torch.Tensor], quantization: str | None) -> dict[str, Product]:
    if quantization is None:
        return {name: partial(_times, weight) for name, weight in weights.items()}
    return {name: rounded(weight, quantization) for name, weight in weights.items()}


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
