"""Drafters: they guess, and can be as wrong as they like."""

from .legal import Legal
from .model import ModelDrafter
from .ngram import NGramDrafter
from .none import NoDrafter

__all__ = ["Legal", "ModelDrafter", "NGramDrafter", "NoDrafter"]
