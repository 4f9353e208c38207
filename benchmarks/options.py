"""What options cost and whether they hold, on a real model.

    python benchmarks/options.py --cost               # penalties, min-p and a bias, as a share of a round
    python benchmarks/options.py --bias               # 2,000 tokens with a bias of -100 on a frequent one
    python benchmarks/options.py --json 100           # so many answers of a JSON schema, with drafts and without

The cost is measured in one process, with and without the options in turn (A B A B ...), and by phases: what options add
lies in `verify` (and, for a draft model, `propose`), never in a forward.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from dataclasses import replace

from draftproof import LLM, SamplingParams

SUBJECTS = ["a baker", "a river", "the moon", "an old radio", "a chess player", "rain", "a lighthouse", "a market"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
    },
    "required": ["name", "age", "colour", "tags"],
    "additionalProperties": False,
}


def conversations(count: int, request: str) -> list[list[dict[str, str]]]:
    return [
        [{"role": "user", "content": f"{request} {SUBJECTS[i % len(SUBJECTS)]}, number {i}."}] for i in range(count)
    ]


def cost(llm: LLM, repeats: int, tokens: int) -> None:
    plain = SamplingParams(seed=1, max_tokens=tokens, ignore_eos=True)
    options = replace(
        plain,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.2,
        min_p=0.02,
        logit_bias={1000: -5.0, 2000: 2.0},
    )
    least = replace(plain, min_p=0.02)
    chats = conversations(repeats, "Tell me a story about")
    for width in (1, 8):
        found: dict[str, list[float]] = {"plain": [], "min_p": [], "options": []}
        rounds: list[float] = []
        for i in range(-1, repeats):  # the first one warms up
            for name, params in (("plain", plain), ("min_p", least), ("options", options)):
                before = dict(llm.engine.counts.seconds), llm.engine.counts.rounds
                llm.chat([chats[max(i, 0)]] * width, [replace(params, seed=j) for j in range(width)], use_tqdm=False)
                count = llm.engine.counts.rounds - before[1]
                spent = {
                    phase: (seconds - before[0].get(phase, 0.0)) / count
                    for phase, seconds in llm.engine.counts.seconds.items()
                }
                if i >= 0:
                    found[name].append(1e3 * (spent["verify"] + spent["propose"] + spent["commit"]))
                    rounds.append(1e3 * sum(spent.values()))
        whole = statistics.median(rounds)
        told = {name: statistics.median(each) for name, each in found.items()}
        print(
            f"{width} at once: a round {whole:.1f} ms; outside the forward {told['plain']:.2f} ms, "
            f"with min-p {told['min_p']:.2f} ms, with penalties, bias and min-p {told['options']:.2f} ms: "
            f"{(told['options'] - told['plain']) / whole:+.1%} of a round"
        )


def bias(llm: LLM, tokens: int = 2000) -> None:
    chats, width = conversations(10, "Tell me a long story about"), 10
    params = [SamplingParams(seed=i, max_tokens=tokens // width, ignore_eos=True) for i in range(width)]
    free = Counter(t for out in llm.chat(chats, params, use_tqdm=False) for t in out.outputs[0].token_ids)
    [(frequent, times)] = free.most_common(1)
    biased = [replace(each, logit_bias={frequent: -100}) for each in params]
    said = [t for out in llm.chat(chats, biased, use_tqdm=False) for t in out.outputs[0].token_ids]
    text = llm.loaded.tokenizer.decode([frequent])
    print(f"token {frequent} {text!r}: {times} of {free.total()} freely, {said.count(frequent)} of {len(said)} at -100")


def schema(llm: LLM, count: int) -> None:
    chats = conversations(count, "Describe as JSON a person who likes")
    params = [
        SamplingParams(seed=i, max_tokens=300, structured_outputs={"json": SCHEMA}, temperature=1.0)
        for i in range(count)
    ]
    off = llm.speculating({"method": "none"})
    fast, slow = ([out.outputs[0] for out in each.chat(chats, params, use_tqdm=False)] for each in (llm, off))
    parsed = 0
    for answer in fast:
        try:
            found = json.loads(answer.text)
        except json.JSONDecodeError:
            print(f"not JSON ({answer.finish_reason}): {answer.text!r}")
            continue
        parsed += set(found) == set(SCHEMA["required"]) and found["colour"] in ("red", "green", "blue")
    same = sum(a.token_ids == b.token_ids for a, b in zip(fast, slow, strict=True))
    drafted, accepted = (sum(getattr(answer.stats, name) for answer in fast) for name in ("drafted", "accepted"))
    print(
        f"JSON schema, T = 1: {parsed} of {count} parse and fit, {same} of {count} the same ids without drafts; "
        f"{accepted} of {drafted} drafted accepted, {sum(len(answer.token_ids) for answer in fast)} tokens in "
        f"{sum(answer.stats.rounds for answer in fast)} passes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--json", type=int, default=0, metavar="COUNT")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    llm = LLM(args.model, dtype=args.dtype, speculative_config={"method": "ngram"})
    if args.cost:
        cost(llm, args.repeats, args.tokens)
    if args.bias:
        bias(llm)
    if args.json:
        schema(llm, args.json)


if __name__ == "__main__":
    main()
