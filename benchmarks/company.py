"""Requests in company against the same requests alone, and memory over many of them.  python benchmarks/company.py

1. Mixed requests (lengths, sampling, seeds, drafts, arrivals, some cancelled) in a memory too small for them: every one
   that finishes is run again alone, by the oracle loop, and must agree in every token and every round.
2. Many short requests: the process's memory after every hundred.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
from prompts import DEFAULT

from draftproof.llm import LLM
from draftproof.models.sizes import readable
from draftproof.replies import Completion, Reply
from draftproof.sampling import SamplingParams

TEXT = DEFAULT.parent / "wikitext2_valid.txt"


def some_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 0.8, 1.0, 1.3]),
        top_k=rng.choice([0, 0, 1, 20, 50]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.6]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        seed=rng.choice([None, rng.randrange(2**64)]),
        stop=rng.choice([(), ("\n\n",), (" the",)]),
        max_tokens=rng.randint(1, 64),
    )


def mixed(llms: list[LLM], tokens: list[int], count: int, cancelled: int, rng: random.Random) -> None:
    engine, arena = llms[0].engine, llms[0].loaded.target._arena
    waiting: list[tuple[LLM, Reply, SamplingParams]] = []
    for i in range(count):
        llm, length, params = rng.choice(llms), max(1, round(900 ** rng.random())), some_params(rng)
        start = rng.choice([0, rng.randrange(len(tokens) - 1000)])  # half of them begin alike
        waiting.append((llm, llm.reply(tokens[start : start + length], params, f"r{i}"), params))
    asked = list(waiting)
    long = [reply.request.name for _, reply, params in asked if params.max_tokens > 20 and not params.stop]
    to_cancel = set(rng.sample(long, cancelled))
    by_request = {id(reply.request): reply for _, reply, _ in asked}
    done: dict[str, Completion] = {}
    peak, stopped = 0, 0
    while waiting or engine.busy:
        if waiting and rng.random() < 0.4:
            engine.add(waiting.pop(0)[1].request)
        for event in engine.step():
            reply = by_request[id(event.request)]
            if event.step is not None:
                reply.add(event.step)
            if event.ended:
                done[event.request.name] = reply.completion(event.error)
            elif event.request.name in to_cancel:
                stopped += engine.cancel(event.request.name)
        peak = max(peak, arena.resident() if arena is not None else 0)
    differ = 0
    for llm, reply, params in asked:
        name = reply.request.name
        if name in done:
            found = done[name]
            alone = llm.start(reply.request.prompt, replace(params, seed=found.seed)).result()
            differ += key(alone) != key(found)
    counts = engine.counts
    lengths = [len(reply.request.prompt) for _, reply, _ in asked]
    print(
        f"{count} requests of {min(lengths)} to {max(lengths)} tokens, {len(llms)} ways to draft: "
        f"{len(done)} finished, {stopped} cancelled, {differ} differ from their solo run"
    )
    print(
        f"  {counts.rounds} rounds, {counts.rows} rows, at most {counts.most_running} at once, {counts.preempted} lost "
        f"their memory and came back, {counts.reused} tokens reused"
    )
    memory = engine.memory
    print(f"  KV: bound {readable(memory.limit)}, held at most {readable(memory.peak)}, in the arena {readable(peak)}")


def key(found: Completion) -> tuple:
    stats = found.stats
    return found.token_ids, found.text, found.finish_reason, stats.rounds, stats.drafted, stats.accepted


def many(llm: LLM, tokens: list[int], count: int, rng: random.Random) -> None:
    process = psutil.Process()

    def replies() -> Iterator[Reply]:
        for i in range(count):
            start = rng.randrange(len(tokens) - 100)
            params = SamplingParams(temperature=1.0, max_tokens=rng.randint(1, 16))
            yield llm.reply(tokens[start : start + rng.randint(1, 60)], params, f"m{i}")

    pending, ended = replies(), 0
    print(f"{count} requests, resident memory after")
    for portion in iter(lambda: [reply for _, reply in zip(range(100), pending, strict=False)], []):
        ended += sum(done.error is None for _, done in llm.answer(portion))
        print(f"  {ended:5}: {process.memory_info().rss / 2**20:.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--text", type=Path, default=TEXT, help="any long text")
    parser.add_argument("--mixed", type=int, default=64)
    parser.add_argument("--cancelled", type=int, default=8)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--memory", type=int, default=24 << 20, help="kv_cache_memory_bytes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.text.exists():
        raise SystemExit(f"--text: there is no {args.text}; give any long text file")
    plain = LLM(args.model, dtype=args.dtype, kv_cache_memory_bytes=args.memory, notify=print)
    llms = [plain, *(plain.speculating({"method": "ngram", "num_speculative_tokens": k}) for k in (2, 5, 8))]
    tokens = plain.encode(args.text.read_text(encoding="utf-8")[:200_000], raw=True)
    rng = random.Random(args.seed)
    if args.mixed:
        mixed(llms, tokens, args.mixed, args.cancelled, rng)
    if args.many:
        many(llms[-1], tokens, args.many, rng)


if __name__ == "__main__":
    main()
