"""draftproof bench run and report: a matrix of configurations against peers, prompt by prompt, and what came of it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..aside import part_of
from .notes import note
from .options import Debug, DraftQuantization, DraftVocabulary, Exact, Model, Threads, speculative_config
from .places import check_apart, check_laws, check_place
from .progress import Progress
from .shown import Caught
from .told import tell, tell_sweep

if TYPE_CHECKING:
    from ..bench.record import Run
    from ..bench.session import Plan

_Option = typer.Option
_PATIENCE = 600.0
_LONGEST = 86_400.0

Drafts = Annotated[
    list[str] | None,
    _Option("--draft", help="As in generate. Repeatable, as are the next four: all combinations run. Default: auto."),
]
Rules = Annotated[list[str] | None, _Option("--verify", help="A rule. Default: coupled.")]
Depths = Annotated[list[str] | None, _Option("--num-speculative-tokens", help="A number, or auto.")]
Trees = Annotated[list[str] | None, _Option("--tree", metavar="WIDTHS", help="Children a node, such as 4x2x1.")]
Controllers = Annotated[list[str] | None, _Option("--controller", help="fixed, threshold or cost.")]
Configs = Annotated[
    list[str] | None,
    _Option("--config", metavar="NAME=JSON", help="Also this speculative_config, by this name. Repeatable."),
]
Temperatures = Annotated[list[float] | None, _Option("--temperature", help="Repeatable. Default: 0, greedy.")]
Batches = Annotated[list[int] | None, _Option("--batch", help="Prompts answered at once. Repeatable. Default: 1.")]
Dtypes = Annotated[list[str] | None, _Option("--dtype", help="Repeatable. Default: bfloat16.")]
Prompts = Annotated[
    str | None,
    _Option(
        metavar="FILE",
        help="Spec-Bench's, MT-bench's or HumanEval's JSON Lines, or a .txt, a prompt a line. Default: 48 of our own.",
    ),
]
Count = Annotated[int | None, _Option(help="So many of them, spread evenly. Default: all.")]
MostTokens = Annotated[int, _Option("--max-tokens", help="Most tokens an answer.")]
Repeat = Annotated[int, _Option(help="Times that everything is measured; the medians count.")]
PeerKinds = Annotated[
    list[str] | None,
    _Option(
        "--peer",
        help="hf (all that apply), hf:plain, hf:lookup, hf:assisted, hf:assisted:tokens=4,schedule=constant. "
        "Repeatable.",
    ),
]
PeerPython = Annotated[str | None, _Option(metavar="PATH", help="The peers' Python. Default: this one.")]
Assistant = Annotated[str | None, _Option(metavar="FOLDER", help="The peers' draft model. Default: ours.")]
PeerTimeout = Annotated[
    float | None, _Option(help="Seconds after which a peer that does not answer is out. Default: 600.")
]
Output = Annotated[
    Path | None, _Option(help="Write the run here, as JSON. The same command goes on where one was stopped.")
]
Plot = Annotated[Path | None, _Option(help="Also draw it: a .svg or .png file. Needs draftproof[bench].")]
AsJson = Annotated[bool, _Option("--json", help="Print the figures as one JSON object.")]


def run(
    model: Model = "smollm2-135m",
    draft: Drafts = None,
    verify: Rules = None,
    num_speculative_tokens: Depths = None,
    tree: Trees = None,
    controller: Controllers = None,
    config: Configs = None,
    draft_vocabulary: DraftVocabulary = None,
    draft_quantization: DraftQuantization = None,
    temperature: Temperatures = None,
    batch: Batches = None,
    dtype: Dtypes = None,
    prompts: Prompts = None,
    count: Count = None,
    max_tokens: MostTokens = 128,
    repeat: Repeat = 1,
    seed: Annotated[int, _Option(help="Of the first prompt; the others' follow.")] = 0,
    raw: Annotated[bool, _Option("--raw", help="Prompts as they are, without the chat template.")] = False,
    peer: PeerKinds = None,
    peer_python: PeerPython = None,
    assistant: Assistant = None,
    peer_timeout: PeerTimeout = None,
    bounds: Annotated[
        int | None,
        _Option(help="Prompts whose acceptances are also set against the most that is possible; 0: none. Default: 8."),
    ] = None,
    output: Output = None,
    plot: Plot = None,
    trace: Annotated[Path | None, _Option(help="Write every round of ours to this file, as JSON Lines.")] = None,
    trace_laws: Annotated[
        int | None, _Option(metavar="M", help="With --trace: the M likeliest tokens of every law, too. Slows ours.")
    ] = None,
    threads: Threads = None,
    exact: Exact = "bits",
    as_json: AsJson = False,
    debug: Debug = False,
) -> int:
    """Measure configurations against plain decoding and peers: one prompt after the other, each by all of them.

    Plain decoding runs twice: what differs between the two is noise. Speed-ups are seconds a token, with 95 %
    intervals over prompts. The rules of comparison are in docs/fairness.md.

    Example: **draftproof bench run --draft auto --draft ngram --temperature 0 --temperature 1 --peer hf**

    Example: **draftproof bench run --model ./qwen-1.5b --draft auto:./qwen-0.5b --prompts question.jsonl --count 20**
    """
    from ..bench.session import Peers, Plan

    _require_peer_for({"--peer-python": peer_python, "--assistant": assistant, "--peer-timeout": peer_timeout}, peer)
    systems = configurations(
        Given(
            draft or ([] if config else ["auto"]),
            verify or (),
            num_speculative_tokens or (),
            tree or (),
            controller or (),
            config or (),
            draft_vocabulary,
            draft_quantization,
        )
    )
    batches = tuple(batch or (1,))
    if bounds is not None and min(batches) > 1:
        raise ValueError(f"--bounds: {bounds} is for one prompt at once; leave it out, or give --batch 1 too")
    plan = Plan(
        model,
        systems,
        temperatures=tuple(temperature or (0.0,)),
        batches=batches,
        dtypes=tuple(dtype or ("bfloat16",)),
        questions=prompts,
        count=count,
        max_tokens=max_tokens,
        repeat=repeat,
        seed=seed,
        bounds=8 if bounds is None else bounds,
        raw=raw,
        threads=threads,
        exact=exact,
        peers=Peers(tuple(_kind(each) for each in peer or ()), peer_python, assistant, peer_timeout or _PATIENCE),
    )
    check_places(output, plot, trace, {"--prompts": None if prompts is None else Path(prompts)})
    check_laws(trace_laws, trace)
    found, status = measured(plan, output, trace, trace_laws)
    tell(found, plot, as_json)
    return status


def report(
    file: Annotated[Path, typer.Argument(help="What --output wrote, or the .part of a run that was stopped.")],
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print the figures of a run file again, or draw them.

    Example: **draftproof bench report r.json --plot r.svg**
    """
    from ..bench.files import read_run

    check_places(None, plot, None, {"FILE": file})
    found = read_run(file)
    (tell_sweep if found.costs else tell)(found, plot, as_json)


def configurations(given: Given) -> dict[str, dict[str, Any]]:
    """All combinations that can be, by name; a note for each that cannot, a ValueError if none can."""
    from ..speculation import SpeculativeConfig

    drafts = [draft for draft in given.drafts if draft != "none"]  # plain decoding is there anyway
    given.require_used(drafts)
    found: dict[str, dict[str, Any]] = {}
    refused: list[ValueError] = []
    rules, depths, trees, controls = (
        each or (None,) for each in (given.rules, given.depths, given.trees, given.controls)
    )
    for draft, rule, depth, tree, control in product(drafts, rules, depths, trees, controls):
        name = system_name(draft, depth, tree, control, rule)
        if name in found:
            raise ValueError(f"--draft: two systems are called {name!r}; give one of them by --config NAME=JSON")
        try:
            config = speculative_config(
                draft,
                False,
                depth,
                rule or "coupled",
                False,
                tree=tree,
                controller=control,
                draft_vocabulary=given.draft_vocabulary if _has_model(draft) else None,
                quantization=given.quantization if _has_model(draft) else None,
            )
            SpeculativeConfig.of(config)
        except ValueError as error:
            refused.append(ValueError(f"{name}: {error}"))
            continue
        found[name] = config
    if refused and not found:
        raise refused[0]
    for error in refused:
        note(f"left out: {error}")
    for name, config in map(_named_config, given.configs):
        if name in found:
            raise ValueError(f"--config: the name {name!r} is taken; give another one")
        found[name] = config
    return found


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says of systems."""

    drafts: Sequence[str]
    rules: Sequence[str] = ()
    depths: Sequence[str] = ()
    trees: Sequence[str] = ()
    controls: Sequence[str] = ()
    configs: Sequence[str] = ()
    draft_vocabulary: int | None = None
    quantization: str | None = None

    def require_used(self, drafts: Sequence[str]) -> None:
        """That no option is given for nothing."""
        options = {
            "--verify": self.rules,
            "--num-speculative-tokens": self.depths,
            "--tree": self.trees,
            "--controller": self.controls,
        }
        for name, values in options.items():
            if values and not drafts:
                raise ValueError(f"{name}: {values[0]!r} is for --draft; a --config says its own")
        for name, value in (("vocabulary", self.draft_vocabulary), ("quantization", self.quantization)):
            if value is not None and not any(map(_has_model, drafts)):
                raise ValueError(f"--draft-{name}: {value!r} is for a draft model; no --draft has one")


def _has_model(draft: str) -> bool:
    return "model:" in draft or draft.startswith("auto:")


def system_name(draft: str, depth: str | None, tree: str | None, control: str | None, rule: str | None) -> str:
    """What a configuration is called: what it was given, without the folders of its models.

    >>> system_name("auto:./models/small", "4", None, None, "block")
    'auto:small K=4 block'
    """
    parts = [part.rpartition("/")[2] if ":" not in part else _short(part) for part in draft.split(",")]
    options = [f"K={depth}" if depth is not None else None, tree, control, rule]
    return " ".join([",".join(parts), *(each for each in options if each is not None)])


def _short(draft: str) -> str:
    kind, _, rest = draft.rpartition(":")
    return f"{kind}:{rest.rstrip('/').rpartition('/')[2]}"


def _named_config(given: str) -> tuple[str, dict[str, Any]]:
    name, _, text = given.partition("=")
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f'--config: {given!r} is not NAME=JSON ({error}); such as fast={{"method": "ngram"}}'
        ) from None
    if not name or not isinstance(config, dict):
        raise ValueError(f'--config: {given!r} is not NAME=JSON; such as fast={{"method": "ngram"}}')
    return name, config


def _require_peer_for(options: Mapping[str, Any], peers: Sequence[str] | None) -> None:
    for name, value in options.items():
        if value is not None and not peers:
            raise ValueError(f"{name}: {value!r} is for peers; give --peer, such as --peer hf")
    timeout = options["--peer-timeout"]
    if timeout is not None and not 0 < timeout <= _LONGEST:
        raise ValueError(
            f"--peer-timeout: {timeout} is not allowed; it must be seconds above 0, and {_LONGEST:.0f} at most"
        )


def _kind(given: str) -> str:
    """--peer -> what `hugging_face_runners` takes."""
    family, _, kind = given.partition(":")
    if family != "hf":
        raise ValueError(f"--peer: {given!r} is unknown; known are hf, hf:plain, hf:lookup, hf:assisted")
    return kind or "hf"


def check_places(output: Path | None, plot: Path | None, trace: Path | None, read: Mapping[str, Path | None]) -> None:
    """Refuse what could not be written, or would be written over another or over what is read, before anything runs."""
    others = dict(read)
    for name, path in (("--output", output), ("--plot", plot), ("--trace", trace)):
        if path is not None:
            check_place(name, path)
            check_apart(name, path, others)
        others[name] = path
    if plot is not None:
        from ..bench.plots import require_able

        require_able(plot)
    if output is not None and output.exists():
        raise ValueError(f"--output: {str(output)!r} exists; bench report shows it; remove it, or give another file")
    if output is not None and trace is not None and part_of(output).exists() and part_of(trace).exists():
        raise ValueError(
            f"--trace: {str(part_of(trace))!r} holds rounds of the run that would go on; give another file, or move it"
        )


def measured(plan: Plan, output: Path | None, trace: Path | None = None, laws: int | None = None) -> tuple[Run, int]:
    """Run a plan with a progress bar. Exit status: 130 after an interrupt; 1 if plain decoding itself failed, or a
    system broke its promise of the same text. The run is as far as it came."""
    from ..bench.runner import RunnerError
    from ..bench.session import broken_promises, perform, prepare
    from ..trace import writing

    session, status = None, 0
    term = Caught(signal.SIGTERM, interrupts=True)
    try:
        with term, nullcontext(None) if trace is None else writing(trace, laws or 0) as writer:
            session = prepare(plan, sys.argv, note, writer)
            with closing(session), Progress("groups of prompts") as progress:
                perform(session, output, progress.show)
    except (KeyboardInterrupt, RunnerError, OSError) as error:
        if session is None:
            raise
        stopped = isinstance(error, KeyboardInterrupt)
        status = (143 if term.came else 130) if stopped else 1
        note(f"{'stopped' if stopped else f'stopped: {error}'}; {_kept(output)}")
    for fault in broken_promises(session.run):
        note(fault)
        status = status or 1
    return session.run, status


def _kept(output: Path | None) -> str:
    if output is None:
        return "nothing is kept without --output"
    return f"what was measured is in {part_of(output)}; the same command goes on with the rest"
