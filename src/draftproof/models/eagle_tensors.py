"""The tensors of an EAGLE-3 head's file: exactly those that it must hold, of the right shapes, and real numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .eagle import FEATURES, EagleConfig

EMBEDDINGS = "embed_tokens.weight"
"""The head's own, if it has any."""
MAPS = ("d2t", "t2d")

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_SHOWN = 5  # names in a message


def _shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """All tensors that a head has, without its maps."""
    layer: Any = config.layer
    h, inner = config.hidden_size, layer.intermediate_size
    q, kv = layer.num_attention_heads * layer.head_dim, layer.num_key_value_heads * layer.head_dim
    inside = {
        "self_attn.q_proj": (q, 2 * h),
        "self_attn.k_proj": (kv, 2 * h),
        "self_attn.v_proj": (kv, 2 * h),
        "self_attn.o_proj": (h, q),
        "mlp.gate_proj": (inner, h),
        "mlp.up_proj": (inner, h),
        "mlp.down_proj": (h, inner),
        "input_layernorm": (h,),
        "hidden_norm": (h,),
        "post_attention_layernorm": (h,),
    }
    return {
        "fc.weight": (h, FEATURES * h),
        **{f"layers.0.{name}.weight": shape for name, shape in inside.items()},
        "norm.weight": (h,),
        "lm_head.weight": (config.draft_vocab_size, h),
    }


def read_tensors(file: Path, config: EagleConfig) -> dict[str, torch.Tensor]:
    """What a file holds, if that is exactly what it must be."""
    if not file.is_file():
        raise ValueError(f"head: folder {str(file.parent)!r} holds no {file.name}")
    needed, vocab = _shapes(config), config.layer.vocab_size
    maps = {"d2t": (config.draft_vocab_size,), "t2d": (vocab,)}
    allowed = {**needed, **maps, EMBEDDINGS: (vocab, config.hidden_size)}
    if config.draft_vocab_size != vocab:
        needed |= maps
    try:
        with safe_open(file, "pt") as opened:
            found = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            _require_names(found, needed, allowed, file)
            tensors = {name: opened.get_tensor(name) for name in found}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"head: {file} cannot be read: {error}") from None
    _require_types(tensors, file)
    require_finite(tensors, f"head: {file}")
    return tensors


def _require_names(
    found: Mapping[str, tuple[int, ...]],
    needed: Mapping[str, tuple[int, ...]],
    allowed: Mapping[str, tuple[int, ...]],
    file: Path,
) -> None:
    faults = []
    if missing := sorted(needed.keys() - found):
        faults.append(f"missing: {listed(missing)}")
    if unknown := sorted(found.keys() - allowed):
        faults.append(f"unknown: {listed(unknown)}")
    if any(name.startswith("midlayer.") for name in unknown):
        faults.append("midlayer.* is the layout of the EAGLE repositories: convert it with `speculators convert`")
    wrong = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in allowed.items()
        if found.get(name, shape) != shape
    ]
    if wrong:
        faults.append(f"wrong shapes: {listed(wrong)}")
    if faults:
        raise ValueError(f"head: {file}: {'; '.join(faults)}")


def _require_types(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    maps = dict(zip(MAPS, (torch.int64, torch.bool), strict=True))
    first = tensors["fc.weight"].dtype
    wrong = [
        f"{name} is {_short(tensor.dtype)}, not {_short(maps.get(name, first))}"
        for name, tensor in tensors.items()
        if tensor.dtype != maps.get(name, first)
    ]
    if first not in _FLOATS:
        wrong = [f"fc.weight is {_short(first)}, not one of {', '.join(map(_short, _FLOATS))}"]
    if wrong:
        raise ValueError(f"head: {file}: wrong dtypes: {listed(wrong)}")


def require_finite(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    wrong = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if wrong:
        raise ValueError(f"{where}: NaN or infinite numbers in {listed(wrong)}")


def maps_of(tensors: Mapping[str, torch.Tensor], config: EagleConfig, file: Path) -> dict[str, torch.Tensor]:
    """d2t and t2d, if they say the same; those of a head of all ids may be left out."""
    known, vocab = config.draft_vocab_size, config.layer.vocab_size
    d2t, t2d = (tensors.get(name) for name in MAPS)
    if d2t is None and t2d is None:
        return {"d2t": torch.zeros(known, dtype=torch.int64), "t2d": torch.ones(vocab, dtype=torch.bool)}
    if d2t is None or t2d is None:
        raise ValueError(f"head: {file}: missing: {'d2t' if d2t is None else 't2d'}, beside the other map")
    ids = ids_of(d2t)
    if ids.min() < 0 or ids.max() >= vocab or (ids.diff() <= 0).any():
        raise ValueError(f"head: {file}: d2t must give rising ids within 0 .. {vocab - 1}, an offset to each draft id")
    seen = torch.zeros(vocab, dtype=torch.bool)
    seen[ids] = True
    if not torch.equal(seen, t2d):
        raise ValueError(
            f"head: {file}: t2d must be true for exactly the ids that d2t gives; {int((seen != t2d).sum())} differ"
        )
    return {"d2t": d2t, "t2d": t2d}


def ids_of(d2t: torch.Tensor) -> torch.Tensor:
    return d2t + torch.arange(len(d2t))


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
