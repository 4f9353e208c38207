"""How much memory keys and values take, from a model's config alone: said before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig

from .load import DTYPES, default_cache_dir, device_named, resolve

_MOST = 4 << 30
"""The default bound, where half of what is free is more."""


def kv_bytes_per_token(
    name: str, dtype: str, cache_dir: Path | None = None, notify: Callable[[str], None] = lambda message: None
) -> int:
    """Of the model `name`, all layers."""
    path = resolve(name, cache_dir or default_cache_dir(), notify)
    try:
        config: Any = AutoConfig.from_pretrained(path).get_text_config()
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"model: {name!r} ({path}) has a config.json that cannot be read: {error}") from error
    return of_config(config) * DTYPES[dtype].itemsize


def of_config(config: Any) -> int:
    """Numbers that a token adds to the cache."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size


def kv_memory_here(device: str) -> int:
    """The default bound: half of what is free there, at most 4 GiB."""
    where = device_named(device)
    free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" else psutil.virtual_memory().available
    return max(1, min(_MOST, free // 2))


def readable(size: int) -> str:
    """
    >>> readable(4 << 30), readable(23040), readable(512)
    ('4.0 GiB', '22.5 KiB', '512 bytes')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
