"""Whether drafted tokens come true as often as their drafter says: by origin, rank among siblings, and what was said.

    draftproof generate --prompts prompts.jsonl --temperature 1 --draft eagle3:smollm2-135m --tree 3 \
        --trace rounds.jsonl
    python benchmarks/confidence.py rounds.jsonl

Only the first level is counted: whatever was accepted, the round's first token is the target's own choice there. A tree
as wide as this one leaves nothing out for what it was.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from draftproof import trace
from draftproof.base import ROOT
from draftproof.drafters.outlook import ranks_of
from draftproof.drafters.worth import bin_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    for path in parser.parse_args().traces:
        found: dict[tuple[str, int], dict[int, list[tuple[float, bool]]]] = defaultdict(lambda: defaultdict(list))
        for request in trace.read(path).requests:
            for step in trace.steps_of(request):
                draft = step.draft
                for node, rank in enumerate(ranks_of(draft)):
                    if draft.parents[node] == ROOT and draft.confidence:
                        said = draft.confidence[node]
                        entry = said, draft.tokens[node] == step.tokens[0]
                        found[draft.origin[node], rank][bin_of(said)].append(entry)
        print(path)
        for (origin, rank), classes in sorted(found.items()):
            every = [came for some in classes.values() for _, came in some]
            print(f"  {origin}, rank {rank}: {sum(every) / len(every):.3f} of {len(every)} came true; said, came, of")
            for _, some in sorted(classes.items()):
                said, came = (sum(each) / len(some) for each in zip(*some, strict=True))
                print(f"    {said:.2f}  {came:.2f}  {len(some)}")


if __name__ == "__main__":
    main()
