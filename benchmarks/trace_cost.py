"""What --trace costs.  python benchmarks/trace_cost.py --count 8 --repeats 5

Every prompt is answered without a trace, without one again, with one, and with one that tells laws, prompt by prompt in
turns whose order rotates. Then the writer alone: the rounds of one more answer, told to a file without a model's run
between them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from prompts import DEFAULT, first_turns

from draftproof.llm import LLM
from draftproof.sampling import SamplingParams
from draftproof.trace import writing

PLAIN = "without"


def seconds_of(llm: LLM, prompt: list[int], params: SamplingParams) -> tuple[float, int]:
    """Wall time from prompt to end, what the trace does between the rounds included, and tokens."""
    began = perf_counter()
    answer = llm.start(prompt, params).result()
    return perf_counter() - began, len(answer.token_ids)


def compare(llms: dict[str, LLM], prompts: list[list[int]], params: SamplingParams, repeats: int) -> None:
    names = list(llms)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for i, prompt in enumerate(prompts):
            at = (repeat + i) % len(names)
            for name in names[at:] + names[:at]:
                seconds, tokens = seconds_of(llms[name], prompt, params)
                rates[name].append(tokens / seconds)
    print(f"{'':16}  tokens/s  of that without (median of the pairs)")
    for name, found in rates.items():
        pairs = [mine / theirs for mine, theirs in zip(found, rates[PLAIN], strict=True)]
        print(f"{name:16}  {median(found):8.2f}  {median(pairs):.4f}")


def alone(llm: LLM, folder: Path, prompt: list[int], params: SamplingParams) -> float:
    """Microseconds of the writer for a round, each time from an empty file on."""
    reply = llm.reply(prompt, params)
    steps = [delta.step for delta in llm.stream(reply)]
    found = []
    for _ in range(20):
        with writing(folder / "alone.jsonl") as writer:
            tracer = writer.labelled(llm.loaded.tokenizer, None)(reply.request, reply.seed, 0, reply.config, 0.0)
            began = perf_counter()
            for step in steps:
                tracer.round(step)
            found.append((perf_counter() - began) / len(steps))
    return 1e6 * median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--draft", default="suffix", help="method of the speculative_config")
    parser.add_argument("--prompts", type=Path, default=DEFAULT)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--laws", type=int, default=5)
    args = parser.parse_args()
    # a fixed depth: a controller that times rounds would draft otherwise in every run
    config = {"method": args.draft, "num_speculative_tokens": 5, "controller": "fixed"}
    llm = LLM(args.model, dtype=args.dtype, speculative_config=config)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=args.max_tokens, ignore_eos=True)
    prompts = [llm.encode(prompt) for prompt in first_turns(args.prompts, args.count)]
    seconds_of(llm, prompts[0], params)  # the first answer is slower
    with tempfile.TemporaryDirectory() as folder:
        with writing(Path(folder) / "rounds.jsonl") as writer, writing(Path(folder) / "laws.jsonl", args.laws) as laws:
            llms = {
                PLAIN: llm,
                "without again": llm,
                "--trace": llm.traced(writer),
                f"--trace-laws {args.laws}": llm.traced(laws),
            }
            compare(llms, prompts, params, args.repeats)
        print(f"the writer alone: {alone(llm, Path(folder), prompts[0], params):.0f} microseconds a round")
        size = (Path(folder) / "rounds.jsonl").stat().st_size
        print(f"a trace of {size / (len(prompts) * args.repeats * args.max_tokens):.0f} bytes a token")


if __name__ == "__main__":
    main()
