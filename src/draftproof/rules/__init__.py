"""The verification rules, one file each, and the one dict that names them."""

from ..base import Rule
from .block import block
from .coupled import coupled
from .token import token

RULES: dict[str, Rule] = {"coupled": coupled, "token": token, "block": block}

__all__ = ["RULES", "block", "coupled", "token"]
