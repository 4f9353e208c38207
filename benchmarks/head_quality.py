"""What trained heads would be worth on texts that the target wrote: by temperature, and by the prompts' categories.

    draftproof train data --prompts questions.jsonl --temperatures 0,1 --samples 2 --max-tokens 128 --out answers
    python benchmarks/head_quality.py --target smollm2-135m --data answers --prompts questions.jsonl run/head

--prompts: the file that the data was made of; the `category` of its lines, if they have one, is what is told apart. A
head is measured as in training (train/evaluate.py), over the steps of --steps. No text is decoded.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from draftproof.fingerprint import fingerprint_of
from draftproof.inputs import chat_tokens
from draftproof.models.eagle_files import load_head
from draftproof.models.load import Loaded, load
from draftproof.train.batches import Text, batch_of, filled
from draftproof.train.corpus import read_data
from draftproof.train.evaluate import evaluate
from draftproof.train.features import FeatureStore, fill, folder_of
from draftproof.train.losses import loss_of, position_decay
from draftproof.train.objective import Objective
from draftproof.train.prepare import texts_of
from draftproof.train.recipe import prompts_of
from draftproof.train.target_head import target_head_of

ROWS = 4096


def groups_of(data: Path, prompts: Path | None, loaded: Loaded) -> dict[str, list[Text]]:
    """All texts; those of each temperature; those of each category."""
    categories: dict[tuple[int, ...], str] = {}
    if prompts is not None:
        lines = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines()]
        for line, (_, prompt) in zip(lines, prompts_of(prompts), strict=True):
            asked = chat_tokens([{"role": "user", "content": prompt}], loaded.tokenizer)
            categories[tuple(asked)] = str(line.get("category", "none"))
    examples = read_data(data).examples
    groups: dict[str, list[Text]] = defaultdict(list)
    for example, text in zip(examples, texts_of(examples), strict=True):
        if text.counts:
            groups["all"].append(text)
            groups[f"T = {example.temperature:g}"].append(text)
            if example.prompt in categories:
                groups[categories[example.prompt]].append(text)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heads", type=Path, nargs="+")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    loaded = load(given.target, dtype="bfloat16", exact="law")
    fingerprint, target_head = fingerprint_of(loaded.path, loaded.tokenizer), target_head_of(loaded.target)
    groups = groups_of(given.data, given.prompts, loaded)
    embeddings = loaded.target.model.get_input_embeddings().weight.detach()
    for folder in given.heads:
        head = load_head(folder, loaded, fingerprint=fingerprint)[0].float()
        layers, size = head.config.feature_layers, head.config.hidden_size
        store = FeatureStore(folder_of(given.data, fingerprint, "bfloat16", layers), (size * len(layers), size))
        fill(store, groups["all"], loaded.target, target_head, layers, tell=print, show=lambda *_: None, stopped=bool)
        rows = target_head.only(head.token_ids)
        weights = position_decay(0.8, given.steps)
        objective = Objective(head, embeddings, rows, loss_of("kl"), weights)
        print(f"{folder}: {len(head.token_ids)} ids")
        for name, texts in groups.items():
            parts = filled([len(text.tokens) for text in texts], range(len(texts)), ROWS)
            batches = (batch_of([texts[at] for at in part], store.of, given.steps) for part in parts)
            print(f"  {name:<16}{evaluate(objective, batches)}", flush=True)


if __name__ == "__main__":
    main()
