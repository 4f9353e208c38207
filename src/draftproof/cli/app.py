"""Puts the commands together, and turns what goes wrong into one clear line."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .bench import bench
from .chat import chat
from .doctor import doctor
from .generate import generate
from .inspect import inspect
from .notes import note
from .prove import prove
from .show import show
from .train import train

app = typer.Typer(
    name="draftproof",
    help="Speculative decoding that you can prove: exactly the target model's output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)
app.command()(doctor)
app.command()(prove)
app.command()(show)
app.command()(inspect)
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")


def _version(wanted: bool | None) -> None:
    if wanted:
        typer.echo(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = None,
) -> None:
    pass


def run(argv: list[str]) -> int:
    """Run a command line; 0 for success, 1 for a fault of ours, 2 for one of the caller's, 130 for an interrupt.

    A command's own status stands: 1 where something of several failed, 143 after SIGTERM."""
    try:
        result = app(argv, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        format_message = getattr(error, "format_message", None)
        if format_message is not None:  # the command line itself is wrong: an unknown option, a missing argument
            if format_message():  # empty where the help was printed instead
                note(format_message())
            return 2
        if "--debug" in argv:
            raise
        if isinstance(error, ValueError | OSError):
            note(str(error))
            return 2
        note(f"unexpected {type(error).__name__}: {error} (--debug shows where)")
        return 1
    return result if isinstance(result, int) else 0
