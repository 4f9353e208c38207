"""Drafters: they guess, and can be as wrong as they like."""

from .combined import CombinedDrafter
from .eagle import EagleDrafter
from .early_exit import EarlyExitDrafter
from .legal import Legal
from .model import ModelDrafter
from .ngram import NGramDrafter
from .none import NoDrafter
from .suffix import SuffixDrafter
from .vocabulary import RetokenisedDrafter, TranslatedDrafter

__all__ = [
    "CombinedDrafter",
    "EagleDrafter",
    "EarlyExitDrafter",
    "Legal",
    "ModelDrafter",
    "NGramDrafter",
    "NoDrafter",
    "RetokenisedDrafter",
    "SuffixDrafter",
    "TranslatedDrafter",
]
