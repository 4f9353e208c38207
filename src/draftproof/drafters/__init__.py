"""Drafters: they guess, and can be as wrong as they like."""

from .combined import CombinedDrafter
from .early_exit import EarlyExitDrafter
from .legal import Legal
from .model import ModelDrafter
from .ngram import NGramDrafter
from .none import NoDrafter

__all__ = ["CombinedDrafter", "EarlyExitDrafter", "Legal", "ModelDrafter", "NGramDrafter", "NoDrafter"]
