"""draftproof train data: what a drafter is trained on."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from .notes import note
from .options import Debug, Device, Dtype, KVMemoryBytes, Threads, kv_bytes, remarks
from .shown import Caught
from .train_told import Tally, Told, duration, report

if TYPE_CHECKING:
    from ..engine import Engine
    from ..llm import LLM
    from ..train.corpus import Example
    from ..train.recipe import Recipe, Task

_Option = typer.Option
_SAMPLED = 64  # prompts whose tokens are counted to predict the size
_TRIED = 16  # rounds after the prompts are read, to predict the time
_BYTES_PER_TOKEN = 6  # of a line: five digits and a comma
_BYTES_PER_LINE = 150


def data(
    target: Annotated[
        str, _Option(help="The model to learn from: folder, .gguf file, embedded model or hub name.")
    ] = "smollm2-135m",
    prompts: Annotated[
        list[Path] | None,
        _Option(metavar="FILE", help="JSON Lines: instruction (and input), prompt, turns or messages. Repeatable."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        _Option(metavar="FILE", help="Plain text, whose passages are put into instructions. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, _Option(metavar="FOLDER", help="Write here. The same command goes on where one stopped.")
    ] = None,
    temperatures: Annotated[
        str, _Option(metavar="T,T,...", help="The answers', in turn; 0, greedy, comes once a prompt.")
    ] = "0,0.7,1,1",
    samples: Annotated[int, _Option(help="Answers to each prompt of --prompts.")] = 4,
    max_tokens: Annotated[int, _Option(help="Most tokens of an answer.")] = 256,
    passages: Annotated[int | None, _Option(help="Most passages of --text, taken evenly. Default: all.")] = None,
    instructions: Annotated[int, _Option(help="Instructions that are made of each passage, with an answer each.")] = 1,
    teacher_forced: Annotated[
        int, _Option(help="Longer passages of --text, that many, to be learned as they are.")
    ] = 0,
    seed: Annotated[int, _Option(help="Same seed, same data, however it is batched.")] = 0,
    limit: Annotated[int | None, _Option(help="Most examples: so many of the whole, mixed as it is.")] = None,
    batch: Annotated[int, _Option(help="Prompts answered at once.")] = 32,
    max_num_batched_tokens: Annotated[int, _Option(help="Most rows of a forward.")] = 256,
    kv_cache_memory_bytes: KVMemoryBytes = None,
    dtype: Dtype = "bfloat16",
    device: Device = "auto",
    threads: Threads = None,
    as_json: Annotated[bool, _Option("--json", help="Print the manifest as one JSON object when all is done.")] = False,
    debug: Debug = False,
) -> int:
    """Make what a drafter is trained on: answers of the model itself, under plain decoding, to prompts of yours.

    The data is a function of the options and the files: the same seed gives the same answers in any batch. It is
    written as it comes, so that nothing that is finished is lost.

    Example: **draftproof train data --prompts prompts.jsonl --text book.txt --out data**
    """
    from .. import __version__
    from ..fingerprint import file_fingerprint, fingerprint_of
    from ..train.corpus import appending, manifest_of, resumed
    from ..train.recipe import Recipe, prompts_of, tasks_of, text_of

    if out is None:
        raise ValueError("--out: it is missing; name the folder to write")
    if not prompts and not text:
        raise ValueError("--prompts: it is missing, and --text too; give at least one file")
    if not text and (teacher_forced or passages is not None):
        raise ValueError(
            f"--{'teacher-forced' if teacher_forced else 'passages'}: it needs --text, a file to take from"
        )
    recipe = Recipe(_numbers(temperatures), samples, max_tokens, passages, instructions, teacher_forced, seed, limit)
    asked = [each for path in prompts or () for each in prompts_of(path)]
    tasks = tasks_of(recipe, asked, [text_of(path) for path in text or ()])
    if not tasks:
        raise ValueError("--passages: 0 is not allowed here; nothing else is asked for")
    if batch < 1:
        raise ValueError(f"--batch: {batch} is not allowed; it must be at least 1")
    _require_place(out)
    files = [("prompts", path) for path in prompts or ()] + [("text", path) for path in text or ()]
    sources = [{"option": option, "name": path.name} | file_fingerprint(path) for option, path in files]
    memory = kv_bytes(kv_cache_memory_bytes)

    from ..llm import LLM

    out.mkdir(exist_ok=True)
    with appending(out) as file:
        llm = LLM(
            target,
            dtype=dtype,
            device=device,
            threads=threads,
            max_num_seqs=batch,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_memory_bytes=memory,
            notify=note,
        )
        remarks(llm)
        fingerprint = fingerprint_of(llm.loaded.path, llm.loaded.tokenizer)
        manifest = manifest_of(target, fingerprint, dtype, recipe, sources, tasks, __version__)
        found, seconds = resumed(out, manifest, tasks)
        job = _Job(out, file, recipe, tasks, manifest | {"seconds": seconds}, found)
        _predict(job, llm)
        status, manifest = _perform(job, llm)
    if as_json and manifest["complete"]:
        print(json.dumps(manifest, ensure_ascii=False))
    return status


def _numbers(given: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in given.split(","))
    except ValueError:
        raise ValueError(
            f"--temperatures: {given!r} is not allowed; give numbers with commas between, such as 0,0.7,1"
        ) from None


def _require_place(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {str(out)!r} is a file; it must be a folder")
    if not out.resolve().parent.is_dir():
        raise ValueError(f"--out: there is no folder {str(out.resolve().parent)!r} to make {out.name} in")


# running


@dataclass(frozen=True, slots=True)
class _Job:
    """What is asked for, and what of it is there. file: where finished examples go. manifest: as it is at the start."""

    out: Path
    file: IO[str]
    recipe: Recipe
    tasks: Sequence[Task]
    manifest: dict[str, Any]
    found: Sequence[Example]

    def left(self) -> list[Task]:
        there = {example.id for example in self.found}
        return [task for task in self.tasks if task.id not in there]


def _perform(job: _Job, llm: LLM) -> tuple[int, dict[str, Any]]:
    """Make what is missing. -> exit status (1 if an example failed, 130 and 143 if a signal stopped it), manifest."""
    from ..train.corpus import Totals, write_manifest

    tally = Tally(Totals())
    for example in job.found:
        tally.totals.add(example)
    write_manifest(job.out, job.manifest)
    status = 0
    with Caught(signal.SIGTERM, interrupts=True) as term, Told(tally, len(job.tasks)) as told:
        try:
            _generate(job, llm, tally, told)
        except KeyboardInterrupt:
            status = 143 if term.came else 130
    manifest = job.manifest | {"seconds": round(job.manifest["seconds"] + tally.seconds, 3)}
    if not status:
        failed = {str(name): error for name, error in tally.failed.items()}
        manifest |= {"complete": True, "totals": asdict(tally.totals), "failed": failed}
    write_manifest(job.out, manifest)
    report(job.out, len(job.tasks), tally, manifest["seconds"], status)
    return status or (1 if tally.failed else 0), manifest


def _generate(job: _Job, llm: LLM, tally: Tally, told: Told) -> None:
    """Feed the engine in portions until all is answered; each example is in the file as soon as it is finished."""
    waiting = deque(job.left())
    under_way: dict[str, Task] = {}
    with llm.running() as engine:
        while waiting or under_way:
            while waiting and len(under_way) < 2 * engine.config.max_num_seqs:
                task = waiting.popleft()
                try:
                    if task.kind == "text":
                        _finish(job, tally, task, (), _ids(llm, task)[: 2 * job.recipe.max_tokens], "text")
                    else:
                        _start(llm, job.recipe, task, engine)
                        under_way[str(task.id)] = task
                except ValueError as error:  # it can never run, being too long: it fails alone
                    tally.failed[task.id] = str(error)
            for event in engine.step() if under_way else ():
                tally.tokens += 0 if event.step is None else len(event.step.tokens)
                if event.ended:
                    task, output = under_way.pop(event.request.name), event.request.output
                    if event.error is not None:
                        tally.failed[task.id] = str(event.error)
                    else:
                        reason = str(output.finish_reason)
                        _finish(job, tally, task, event.request.prompt, output.token_ids, reason)
            told.show()


def _finish(job: _Job, tally: Tally, task: Task, prompt: Sequence[int], tokens: Sequence[int], reason: str) -> None:
    from ..train.corpus import Example, line_of

    ids = tuple(prompt), tuple(tokens)
    example = Example(task.id, task.kind, task.source, *ids, task.temperature, task.seed, reason)
    job.file.write(line_of(example) + "\n")
    job.file.flush()
    tally.totals.add(example)
    tally.made += 1


def _start(llm: LLM, recipe: Recipe, task: Task, engine: Engine) -> int:
    """Give one to the engine, under the target's own law, whatever its generation_config.json would change in it.
    -> tokens of the prompt."""
    from ..sampling import SamplingParams

    params = SamplingParams(temperature=task.temperature, seed=task.seed, max_tokens=recipe.max_tokens)
    reply = llm.reply(_ids(llm, task), params, str(task.id))
    engine.add(reply.request)
    return len(reply.request.prompt)


def _ids(llm: LLM, task: Task) -> list[int]:
    """A prompt through the chat template if the target has one, a text as it is."""
    from ..inputs import chat_tokens

    tokenizer = llm.loaded.tokenizer
    if isinstance(task.prompt, str):
        return llm.encode(task.prompt, raw=task.kind == "text")
    if tokenizer.chat_template:
        return chat_tokens(task.prompt, tokenizer)
    return llm.encode("\n\n".join(message["content"] for message in task.prompt), raw=True)


# telling


def _predict(job: _Job, llm: LLM) -> None:
    """What is to come, before it begins; how long, by a short trial, unless there is little to do."""
    from ..models.sizes import readable

    tasks, most = job.tasks, job.recipe.max_tokens
    answers = [task for task in tasks if task.kind == "answer"]
    left = [task for task in job.left() if task.kind == "answer"]
    prompt = _mean_prompt(llm, answers[:_SAMPLED])
    tokens = len(answers) * (prompt + most) + (len(tasks) - len(answers)) * 2 * most
    size = int(tokens * _BYTES_PER_TOKEN + len(tasks) * _BYTES_PER_LINE)
    shares = Counter(task.source if task.kind == "answer" else f"{task.source} as it is" for task in tasks)
    note(
        f"{len(tasks):,} examples ({', '.join(f'{count:,} of {source}' for source, count in shares.items())}), "
        f"{len(job.found):,} of them there; at most {len(left) * most:,} tokens to generate, at most "
        f"{readable(size)} in {job.out}"
    )
    batch = llm.engine.config.max_num_seqs
    if len(left) > 2 * batch:
        reading, writing = _trial(llm, job.recipe, left[:batch])
        seconds = len(left) * (prompt / reading + most / writing)
        note(f"a trial wrote {writing:.0f} tokens/s and read {reading:.0f}: at most about {duration(seconds)}")


def _mean_prompt(llm: LLM, tasks: Sequence[Task]) -> float:
    """Tokens."""
    lengths = []
    for task in tasks:
        with suppress(ValueError):  # told when its turn comes
            lengths.append(len(_ids(llm, task)))
    return sum(lengths) / max(len(lengths), 1)


def _trial(llm: LLM, recipe: Recipe, tasks: Sequence[Task]) -> tuple[float, float]:
    """Tokens a second of prompts, and of answers when so many are under way at once: their beginnings, then dropped."""
    read = written = steps = 0
    waiting: set[str] = set()
    began = first = time.perf_counter()
    with llm.running() as engine:
        for task in tasks:
            with suppress(ValueError):  # too long: told when its turn comes
                read += _start(llm, recipe, task, engine)
                waiting.add(str(task.id))
        while engine.busy and steps < _TRIED:
            events = engine.step()
            if waiting:
                waiting -= {event.request.name for event in events}
                first = time.perf_counter()
            else:
                written += sum(len(event.step.tokens) for event in events if event.step is not None)
                steps += 1
    ended = time.perf_counter()
    return max(read, 1) / max(first - began, 1e-9), max(written, 1) / max(ended - first, 1e-9)
