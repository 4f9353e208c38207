"""A head of ours, in the hands of the `speculators` library: the same tensors, the same logits, and back.

It needs an interpreter that has `speculators`, which wants another transformers than draftproof:

    python3.11 -m venv /tmp/spec-env
    /tmp/spec-env/bin/pip install torch==2.13.0 "transformers>=5,<5.20" pydantic pydantic-settings loguru openai \
        aiohttp "datasets<=5.1.0" psutil click rich typer
    /tmp/spec-env/bin/pip install --no-deps speculators==0.9.0
    python benchmarks/speculators_roundtrip.py --python /tmp/spec-env/bin/python

A tiny random Llama and a tiny random head are saved; the library loads the head against the Llama, runs its training
forward of several steps on given features and tokens, of two documents, and saves the head again. Then this side does
the same forward with EagleHead, and reads what was saved. It prints what it found, and exits with 1 where something is
not the same. Its step k is the k-th draft of every position, so equal logits at all steps are the same drafts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-5
STEPS = 4
PLAIN = {"rope_theta": 5000.0, "rope_type": "default"}
SCALED = {
    "rope_theta": 5000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = (  # norm_before_residual, ids known, rope, whether the file holds the target's embeddings
    (True, 40, PLAIN, False),
    (False, 40, SCALED, False),
    (True, 257, PLAIN, False),
    (True, 40, PLAIN, True),
)
DOCUMENTS = (150, 106)  # in all a multiple of 128, the blocks of its attention

THEIRS = r"""
import importlib.metadata, json, sys
import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

place, steps = sys.argv[1], int(sys.argv[2])
model = SpeculatorModel.from_pretrained(f"{place}/head", dtype=torch.float32)
assert type(model) is Eagle3DraftModel, type(model)
given = load_file(f"{place}/given.safetensors")
verifier = load_file(f"{place}/target/model.safetensors")["model.embed_tokens.weight"].float()
taken = torch.equal(model.embed_tokens.weight, verifier)
if not taken:
    # it looks for NaN to know what is missing, and transformers 5 leaves there whatever the memory held
    torch.nn.init.constant_(model.embed_tokens.weight, torch.nan)
    model.load_verifier_weights()
said = []
model.lm_head.register_forward_hook(lambda module, args, result: said.append(result[0].detach()))
model.eval()
with torch.no_grad():
    model(given["features"][None], given["tokens"][None], given["documents"][None], ttt_steps=steps,
          position_ids=given["positions"][None])
found = {f"logits.{step}": logits.contiguous() for step, logits in enumerate(said)}
found |= {f"state.{name}": tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
save_file(found, f"{place}/theirs.safetensors")
model.to(torch.bfloat16).save_pretrained(f"{place}/back")
print(json.dumps({name: importlib.metadata.version(name) for name in ("speculators", "transformers", "torch")}
                 | {"class": type(model).__name__, "embeddings": "taken" if taken else "lost, and taken when told to"}))
"""


def make(place: Path, norm_before_residual: bool, known: int, rope: dict[str, Any], embeds: bool) -> None:
    """A target, a head of it, and what to give it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from draftproof.models.eagle import EagleConfig, EagleHead
    from draftproof.models.eagle_files import About, save_head

    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    layer = LlamaConfig(**sizes, num_key_value_heads=2, num_hidden_layers=1, rope_parameters=rope, rms_norm_eps=1e-5)
    target = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, num_hidden_layers=6, initializer_range=0.3))
    target.to(torch.bfloat16).save_pretrained(place / "target")  # the library will save its embeddings with the head
    ids = torch.randperm(257)[:known].sort().values
    head = EagleHead(EagleConfig(layer, known, (2, 3, 4), norm_before_residual), ids)
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.03 * torch.randn_like(weight))  # much more, and each step would blow up the one's rounding
    embeddings = target.get_input_embeddings().weight.detach() if embeds else None
    about = About(str(place / "target"), ("LlamaForCausalLM",), training={"steps": 1}, embeddings=embeddings)
    save_head(place / "head", head, about)
    count = sum(DOCUMENTS)
    given = {
        "features": torch.randn(count, 3 * 64),
        "tokens": torch.randint(257, (count,)),
        "documents": torch.cat([torch.full((length,), i) for i, length in enumerate(DOCUMENTS)]),
        "positions": torch.cat([torch.arange(1, length + 1) for length in DOCUMENTS]),
    }
    save_file(given, place / "given.safetensors")


def ours(place: Path, folder: Path) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The logits of every step, in float32, with the head of a folder; and its state."""
    from transformers import AutoModelForCausalLM

    from draftproof.models.bits import LAW_PLAN
    from draftproof.models.eagle_files import load_head
    from draftproof.models.hf import HFTarget
    from draftproof.models.load import Loaded

    model = AutoModelForCausalLM.from_pretrained(place / "target", dtype=torch.float32)
    head, about = load_head(folder, Loaded("target", place / "target", HFTarget(model, LAW_PLAN), None, {}))
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    own, shared = about.embeddings, model.get_input_embeddings().weight.detach()
    head, embeddings = head.float(), (shared if own is None else own).float()
    given = load_file(place / "given.safetensors")
    tokens, documents, count = given["tokens"], given["documents"], len(given["tokens"])
    rows = torch.arange(count)
    causal = (rows[:, None] >= rows) & (documents[:, None] == documents)
    hidden, keys, values, seen, found = head.fuse(given["features"])[None], [], [], [causal], []
    with torch.no_grad():
        for step in range(STEPS):
            shifted = torch.cat([tokens[step:], tokens.new_zeros(step)])
            q, k, v, residual = head.attended(
                embeddings[shifted][None], hidden, head.rotations(given["positions"] + step)
            )
            keys.append(k), values.append(v)
            attention = torch.nn.functional.scaled_dot_product_attention(
                q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=torch.cat(seen, 1), enable_gqa=True
            )
            hidden = head.finished(attention.transpose(1, 2), residual)
            found.append(head.logits(hidden)[0])
            seen.append(torch.eye(count, dtype=torch.bool))
    return found, state


def compare(place: Path, python: Path) -> bool:
    made = subprocess.run([python, "-c", THEIRS, str(place), str(STEPS)], capture_output=True, text=True, check=False)
    if made.returncode:
        print(made.stderr, file=sys.stderr)
        raise SystemExit(f"{python} failed")
    print(made.stdout.strip().splitlines()[-1])
    theirs = load_file(place / "theirs.safetensors")
    logits, state = ours(place, place / "head")
    differ = [
        name for name, tensor in state.items() if not torch.equal(tensor, _given(theirs, f"state.{name}", tensor))
    ]
    print(f"tensors: {len(state)}, of which {len(differ)} differ {differ or ''}")
    gaps = [float((mine - theirs[f"logits.{step}"]).abs().max()) for step, mine in enumerate(logits)]
    largest = max(float(mine.abs().max()) for mine in logits)
    print(f"logits: up to {largest:.3g}; largest difference by step: {', '.join(f'{gap:.1e}' for gap in gaps)}")
    again, back = ours(place, place / "back")
    changed = [name for name in state if not torch.equal(state[name].float(), back[name].float())]
    after = max(float((one - two).abs().max()) for one, two in zip(logits, again, strict=True))
    print(f"back: {len(back)} tensors, of which {len(changed)} differ; logits differ by {after:.1e} at most")
    kept = json.loads((place / "back" / "config.json").read_text()).get("draftproof")
    print(f"back: our own part of config.json is {'kept' if kept else 'lost'}")
    return not differ and not changed and max(gaps) <= TOLERANCE * max(1.0, largest) and after <= TOLERANCE


def _given(theirs: dict[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
    """Theirs, or the map that a head of all ids has no need of."""
    if name not in theirs and name in ("state.d2t", "state.t2d"):
        return torch.ones_like(like) if like.dtype is torch.bool else torch.zeros_like(like)
    return theirs[name].to(like.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="an interpreter that has `speculators`")
    parser.add_argument("--keep", type=Path, help="a folder to leave the files in")
    args = parser.parse_args()
    right = True
    for residual, known, rope, embeds in CASES:
        with tempfile.TemporaryDirectory() as temporary:
            place = (args.keep or Path(temporary)) / f"{residual}-{known}-{embeds}"
            place.mkdir(parents=True, exist_ok=True)
            print(f"norm_before_residual {residual}, {known} of 257 ids, rope {rope['rope_type']}, embeddings {embeds}")
            make(place, residual, known, rope, embeds)
            right &= compare(place, args.python)
    raise SystemExit(0 if right else 1)


if __name__ == "__main__":
    main()
