"""Reading what callers give: anything that is an array of real numbers, and nothing that only looks like one."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

SUM_TOLERANCE = 4e-3
"""How far from 1 a caller's probabilities may add up, before they are normalised: a bfloat16 softmax is off by 2⁻⁹."""


def array(name: str, value: Any) -> np.ndarray:
    """NumPy's, torch's or anything with `__array__`, lists of them too; ValueError naming the argument otherwise."""
    try:
        if isinstance(value, list | tuple):
            value = [array(name, each) if hasattr(each, "__array__") else each for each in value]
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("it is masked; fill in what is masked")
        detach = getattr(value, "detach", None)
        if detach is not None:  # a torch tensor: bfloat16, gradients and other devices are no arrays
            tensor = detach().cpu()
            return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)
        return np.asarray(value)
    except Exception as error:  # whatever `__array__` of another library raises
        raise ValueError(f"{name}: it cannot be read as a NumPy array: {error}") from None


def real(name: str, value: Any) -> np.ndarray:
    """A float64 copy of an array of real numbers."""
    raw = array(name, value)
    kind = raw.dtype.kind
    try:
        # V: other libraries' float types; objects may be fractions, but no strings
        if kind not in "biufOV" or (kind == "O" and not all(isinstance(x, Real) for x in raw.flat)):
            raise TypeError
        with np.errstate(over="ignore"):
            return np.array(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: {raw.dtype} is not allowed; it must be an array of real numbers") from None
