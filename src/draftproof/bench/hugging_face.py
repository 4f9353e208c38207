"""Hugging Face's `generate` as a program that others measure: PYTHON hugging_face.py, a line of JSON in, a line out.

It may run in a Python with other versions of everything, so it imports nothing of this package, and torch and
transformers only when a model is loaded.

    {"op": "load", "model": folder, "dtype": "bfloat16", "threads": n}
        -> {"ok": true, "versions": {...}}
    {"op": "assist", "assistant": folder}
        -> {"ok": true}
    {"op": "answer", "system": {"method": "plain"}, "prompts": [[ids]], "seeds": [...], "temperature": t,
     "max_tokens": n, "end_ids": [...]}
        -> {"seconds": s, "answers": [{"token_ids": [...], "arrivals": [[seconds, count], ...]}], "peak_bytes": n}

Other systems: {"method": "lookup", "tokens": n, "ngram": n} and {"method": "assisted", "tokens": n, "schedule":
"constant" or "heuristic", "confidence": c}. What goes wrong is {"error": "one line"}, and it goes on. It ends when its
input does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO


def main() -> None:
    requests, replies = _channels()
    # this folder comes first on the path, and its files have names that libraries look for
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    with suppress(BrokenPipeError):  # nobody listens any more
        serve(requests, replies)


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """The input and output this was started with. In their place stand nothing and the error output: libraries print,
    and children that they start inherit."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def serve(requests: Iterable[bytes], replies: BinaryIO) -> None:
    peer = None
    for line in requests:
        try:
            request = json.loads(line)
            if request["op"] == "load":
                peer = Peer(request["model"], request["dtype"], request["threads"])
                reply: dict[str, Any] = {"ok": True, "versions": peer.versions}
            elif request["op"] not in ("assist", "answer"):
                raise ValueError(f"op: {request['op']!r} is unknown; known are load, assist, answer")
            elif peer is None:
                raise ValueError("nothing is loaded")
            elif request["op"] == "assist":
                peer.assist(request["assistant"])
                reply = {"ok": True}
            else:
                reply = peer.answer(request)
        except Exception as error:  # whatever a model makes the libraries raise
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


class Peer:
    """A model and, once it has been told of one, its assistant."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        self._torch, self._transformers = import_module("torch"), import_module("transformers")
        self._torch.set_num_threads(threads)
        self._transformers.logging.set_verbosity_error()
        self._transformers.logging.disable_progress_bar()
        self._dtype = getattr(self._torch, dtype)
        self._model, self._assistant = self._loaded(model), None
        self.versions = {each.__name__: each.__version__ for each in (self._torch, self._transformers)}

    def assist(self, folder: str) -> None:
        self._assistant = self._loaded(folder)

    def _loaded(self, folder: str) -> Any:
        load = self._transformers.AutoModelForCausalLM.from_pretrained
        try:
            model = load(folder, dtype=self._dtype)
        except TypeError:  # before transformers 4.56 it is called
            model = load(folder, torch_dtype=self._dtype)
        # what a call leaves open is filled in from the model's own settings: there must be none
        model.generation_config = self._transformers.GenerationConfig()
        return model.eval()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        prompts, ends = request["prompts"], request["end_ids"]
        options = self._drafting(request["system"])
        config = self._config(options, request["temperature"], request["max_tokens"], ends)
        more = {} if request["system"]["method"] != "assisted" else {"assistant_model": self._assistant}
        self._torch.manual_seed(request["seeds"][0])
        able = _forget_peak()
        with self._torch.inference_mode():
            clock = Clock(len(prompts))
            ids, mask = (self._torch.tensor(rows) for rows in padded(prompts, ends[0] if ends else 0))
            out = self._model.generate(ids, attention_mask=mask, generation_config=config, streamer=clock, **more)
            seconds = clock.now()
        peak = _peak_bytes() if able else None
        answers = [cut(row, ends) for row in out[:, ids.shape[1] :].tolist()]
        told = [{"token_ids": answer, "arrivals": clock.arrivals(len(answer))} for answer in answers]
        return {"seconds": seconds, "answers": told, "peak_bytes": peak}

    def _drafting(self, system: dict[str, Any]) -> dict[str, Any]:
        """What the call's config says of drafting. An assistant's is its own, and anew for each answer: `generate`
        writes into it what the schedule has come to."""
        if system["method"] == "lookup":
            return {"prompt_lookup_num_tokens": system["tokens"], "max_matching_ngram_size": system["ngram"]}
        if system["method"] == "assisted":
            if self._assistant is None:
                raise ValueError("no assistant is loaded")
            self._assistant.generation_config = self._transformers.GenerationConfig(
                num_assistant_tokens=system["tokens"],
                num_assistant_tokens_schedule=system["schedule"],
                assistant_confidence_threshold=system["confidence"],
            )
        elif system["method"] != "plain":
            raise ValueError(f"method: {system['method']!r} is unknown; known are plain, lookup, assisted")
        return {}

    def _config(self, options: dict[str, Any], temperature: float, max_tokens: int, ends: list[int]) -> Any:
        law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        end = {"eos_token_id": ends, "pad_token_id": ends[0]} if ends else {}
        return self._transformers.GenerationConfig(
            **{"max_new_tokens": max_tokens, "do_sample": False, **law, **end, **options}
        )


class Clock:
    """A streamer: `generate` gives it the prompt, then the tokens of each round, of all rows together, as soon as they
    are known. What an assistant generates does not come by."""

    def __init__(self, rows: int) -> None:
        self._rows, self._began = rows, time.perf_counter()
        self._put: list[tuple[float, int]] = []  # seconds, and tokens a row

    def now(self) -> float:
        return time.perf_counter() - self._began

    def put(self, tokens: Any) -> None:
        self._put.append((self.now(), tokens.numel() // self._rows))

    def end(self) -> None:
        """Asked of streamers. All has come by."""

    def arrivals(self, length: int) -> list[tuple[float, int]]:
        """Of an answer of so many tokens: what came later was padding."""
        found, left = [], length
        for seconds, count in self._put[1:]:
            if left:
                found.append((seconds, min(count, left)))
                left -= min(count, left)
        if left:
            raise RuntimeError(f"{left} of {length} tokens of an answer were not streamed")
        return found


def padded(prompts: list[list[int]], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of one length, filled on the left, and which of it is prompt.

    >>> padded([[5, 6], [7]], 0)
    ([[5, 6], [0, 7]], [[1, 1], [0, 1]])
    """
    longest = max(map(len, prompts))
    ids = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
    return ids, [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]


def cut(tokens: list[int], ends: list[int]) -> list[int]:
    """Up to the first end, which is kept.

    >>> cut([5, 2, 2, 2], [1, 2]), cut([5, 6], [2])
    ([5, 2], [5, 6])
    """
    stop = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: stop + 1]


# as in peak.py, which is not to be had here


def _forget_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak_bytes() -> int | None:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    main()
