"""What a model is, in a few hashes: two folders with the same fingerprint give the same logits from the same tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 22  # bytes read at once
_LENGTH = 8  # bytes before a safetensors header, that say how long it is
_MOST_HEADER = 100_000_000  # bytes; safetensors' own bound

_NO_MATTER = (  # of a config.json: what changes no logit
    *("transformers_version", "_name_or_path", "architectures", "torch_dtype", "dtype", "use_cache"),
    *("output_attentions", "output_hidden_states", "return_dict", "attn_implementation", "_attn_implementation"),
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "id2label",
        "label2id",
        "problem_type",
        "chunk_size_feed_forward",
    ),
)


def fingerprint_of(folder: Path, tokenizer: Any) -> dict[str, str]:
    """sha256 of the weights, config, tokenizer and chat template of a model folder and its loaded tokenizer."""
    return {"weights": weights_fingerprint(folder)} | quick_fingerprint(folder, tokenizer)


def quick_fingerprint(folder: Path, tokenizer: Any) -> dict[str, str]:
    """The same but for the weights, which take a second a gigabyte."""
    return {
        "config": config_fingerprint(folder),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "template": hashlib.sha256(_line(tokenizer.chat_template)).hexdigest(),
    }


def weights_fingerprint(folder: Path) -> str:
    """sha256 over names, dtypes, shapes and bytes of all tensors of a folder's .safetensors files, in order of names.

    How the tensors lie in files, and what else the files say, does not count. The files are streamed, so memory does
    not grow with them. ValueError: there is no such file, one is broken, or two hold the same name.
    """
    tensors: dict[str, _Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in _tensors(file).items():
            if name in tensors:
                raise ValueError(f"{file}: tensor {name} is in {tensors[name].file.name} too")
            tensors[name] = tensor
    if not tensors:
        raise ValueError(f"{folder}: it holds no weights as .safetensors files, which a fingerprint is taken of")
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(_line([name, tensor.dtype, tensor.shape]))
        tensor.feed(found)
    return found.hexdigest()


def config_fingerprint(folder: Path) -> str:
    """sha256 of what a folder's config.json says about the model; who wrote it, and defaults of use, do not count."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return hashlib.sha256(_line({key: config[key] for key in config if key not in _NO_MATTER})).hexdigest()


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """sha256 over a transformers tokenizer's vocabulary and special tokens."""
    found = hashlib.sha256(_line(sorted(tokenizer.get_vocab().items())))
    special: Mapping[str, Any] = tokenizer.special_tokens_map
    found.update(_line({name: str(special[name]) for name in special}))
    return found.hexdigest()


def file_fingerprint(file: Path) -> dict[str, Any]:
    """{"bytes": size, "sha256": ...} of a file as it is."""
    with file.open("rb") as opened:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


class _Tensor:
    def __init__(self, file: Path, dtype: str, shape: list[int], begin: int, end: int) -> None:
        self.file, self.dtype, self.shape, self._begin, self._end = file, dtype, shape, begin, end

    def feed(self, digest: Any) -> None:
        with self.file.open("rb") as opened:
            opened.seek(self._begin)
            left = self._end - self._begin
            while left:
                chunk = opened.read(min(left, _CHUNK))
                if not chunk:
                    raise ValueError(f"{self.file}: it ends within a tensor")
                digest.update(chunk)
                left -= len(chunk)


def _tensors(file: Path) -> dict[str, _Tensor]:
    """Where each tensor lies in a file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH), "little")
        if not 0 < length <= _MOST_HEADER:
            raise ValueError(f"{file}: it is no safetensors file")
        try:
            header = json.loads(opened.read(length))
            start = _LENGTH + length
            return {
                name: _Tensor(file, each["dtype"], each["shape"], *(start + offset for offset in each["data_offsets"]))
                for name, each in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}: its header is broken: {error}") from None


def _line(value: Any) -> bytes:
    """One way to write a value, ended, so that no two lists of values are written alike."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":")) + "\n").encode()
