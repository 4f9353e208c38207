"""draftproof train: what a drafter is trained on, and its training."""

from __future__ import annotations

import typer

from .train_data import data
from .train_eagle import eagle

train = typer.Typer(no_args_is_help=True, help="Train a drafter for a model.")
train.command()(data)
train.command()(eagle)
