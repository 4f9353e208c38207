"""Quicker products for a model's linear layers: the same numbers, the same module, other calls.

In bfloat16, `linear` rearranges the whole weight at every call. The transposed product W · xᵀ reads it where it lies,
and gives a row the same bits. In float32 the weight is rearranged once, into the layout that oneDNN's product reads; a
row's bits then no longer depend on the number of rows (MKL's, which torch calls otherwise, do).

A layer keeps its identity: only its class is exchanged. `state_dict` shows the weights as ever. `restore` undoes it.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from jaxtyping import Float
from torch import nn

UNLIMITED = 1 << 30
_TRIED = 4  # rows of a trial: the least that an exact forward has
_LINE = 64  # bytes of a cache line
_PAGEOUT = 21  # MADV_PAGEOUT of Linux
_DTYPES = (torch.bfloat16, torch.float32)


class SlicedLinear(nn.Linear):
    """A linear layer that multiplies at most `most` rows at once: with more, its kernel adds up in another order."""

    most: int = UNLIMITED

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def forward(self, input: Float[torch.Tensor, "*b k"]) -> Float[torch.Tensor, "*b n"]:
        rows = input.reshape(-1, input.shape[-1])
        if len(rows) <= self.most:
            y = self.product(rows)
        else:
            y = torch.cat([self.product(some) for some in rows.split(self.most)])
        return y.view(*input.shape[:-1], y.shape[-1])

    def product(self, x: Float[torch.Tensor, "r k"]) -> Float[torch.Tensor, "r n"]:
        return F.linear(x, self.weight, self.bias)


class TransposedLinear(SlicedLinear):
    """(W · xᵀ)ᵀ: the weight is the left matrix, whose rows the kernel reads as they lie in memory."""

    def product(self, x: Float[torch.Tensor, "r k"]) -> Float[torch.Tensor, "r n"]:
        return self.raw(x, self.weight, self.bias).t().contiguous()

    @staticmethod
    def raw(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[n, r]: the product as the kernel leaves it."""
        return torch.mm(weight, x.t()) if bias is None else torch.addmm(bias[:, None], weight, x.t())


class PackedLinear(SlicedLinear):
    """The weight in oneDNN's layout, and in no other. `weight` and `state_dict` unpack a copy of it."""

    packed: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    @property
    def weight(self) -> torch.Tensor:  # ty: ignore[incompatible-property-override]
        return self.packed.to_dense()

    def product(self, x: Float[torch.Tensor, "r k"]) -> Float[torch.Tensor, "r n"]:
        if torch.is_grad_enabled() and x.requires_grad:
            return super().product(x)  # the packed product has no derivative
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        """Cast or moved, it is an ordinary layer again."""
        _unpack(self)
        return self._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        _unpack(self)
        self._load_from_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> nn.Linear:
        other: Any = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        other.weight = nn.Parameter(self.weight, requires_grad=False)
        other.bias = None if self.bias is None else nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        _pack(other)
        other.most = self.most
        memo[id(self)] = other
        return other.train(self.training)


def quicken(model: nn.Module) -> list[nn.Module]:
    """Exchange what can be exchanged, a layer at a time, so that no two layers are held twice. Returns those layers.

    Left alone: other classes than `nn.Linear` itself, layers with hooks, on another device or of another dtype.
    """
    owners = _owners(model)
    verdicts: dict[tuple, type[SlicedLinear] | None] = {}
    done = []
    for module in dict.fromkeys(model.modules()):
        if not _is_plain(module):
            continue
        shared = owners[id(module.weight)] > 1
        key = (module.weight.shape, module.weight.dtype, module.bias is None, shared)
        if key not in verdicts:
            verdicts[key] = _choose(module, shared)
        kind = verdicts[key]
        if kind is not None:
            _become(module, kind)
            done.append(module)
    return done


def plain(layer: SlicedLinear) -> None:
    """Torch's own product again, still in slices."""
    restore([layer])
    layer.__class__ = SlicedLinear


def restore(modules: Iterable[nn.Module]) -> None:
    """Ordinary layers again, with the bits they had."""
    for module in modules:
        if isinstance(module, PackedLinear):
            _unpack(module)
        elif isinstance(module, SlicedLinear):
            module.__class__ = nn.Linear
            for name in ("most", "shared", "index", "loose"):
                module.__dict__.pop(name, None)


def trim() -> None:
    """Hand freed memory back to the system: measuring leaves some hundred megabytes in the allocator's pockets."""
    give = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give is not None:
        give(0)


def _owners(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter: a tied one must stay where its other owner finds it."""
    count: dict[int, int] = {}
    for module in dict.fromkeys(model.modules()):
        for weight in module._parameters.values():
            if weight is not None:
                count[id(weight)] = count.get(id(weight), 0) + 1
    return count


def _is_plain(module: nn.Module) -> bool:
    return (
        type(module) is nn.Linear
        and "forward" not in module.__dict__  # wrapped by an offloading library, for one
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        and module.weight.device.type == "cpu"
        and module.weight.dtype in _DTYPES
        and type(module.weight) is nn.Parameter
        and module.weight.layout is torch.strided
        and module.weight.is_contiguous()
    )


@torch.inference_mode()
def _choose(module: Any, shared: bool) -> type[SlicedLinear] | None:
    """The class for layers like this one. The choice never turns on a clock where it would change the bits."""
    many = torch.randn(8 * _TRIED, module.in_features, generator=torch.Generator().manual_seed(0))
    x, *others = many.to(module.weight.dtype).split(_TRIED)
    kind: type[SlicedLinear] = SlicedLinear
    with suppress(RuntimeError, NotImplementedError, AttributeError):  # no such kernel in this build
        if module.weight.dtype is torch.bfloat16:
            quick = _as(module, TransposedLinear).product
            same = all(torch.equal(quick(rows), F.linear(rows, module.weight, module.bias)) for rows in (x, *others))
            if same and _is_quicker(module, x):
                kind = TransposedLinear
        elif not shared and torch.backends.mkldnn.is_available():
            trial = _as(module, PackedLinear)
            if _is_product(trial.product(x), x, module) and torch.equal(trial.weight, module.weight):
                kind = PackedLinear
    return kind


def _as(module: nn.Linear, kind: type[SlicedLinear]) -> Any:
    """A layer of that kind with the module's own weights, beside it."""
    other: Any = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
    other.weight, other.bias = module.weight, module.bias
    _become(other, kind)
    return other


def _align(weight: torch.Tensor) -> None:
    """Weights mapped from a file stand at odd addresses, where each piece of a row is read from two cache lines
    (measured: a forward takes a third longer). Moved by its data, so that a tied weight stays tied."""
    if weight.data_ptr() % _LINE:
        old = weight.data
        weight.data = torch.empty_like(old).copy_(old)
        give_back(old)


def give_back(weight: torch.Tensor) -> None:
    """Tell the system that these pages are not needed soon: what was mapped from a file leaves memory now, not when the
    last tensor of the file has gone. Advice alone: the numbers stay readable."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if madvise is not None:
        first = -(-weight.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = weight.data_ptr() + weight.nbytes - first
        if size > 0:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _PAGEOUT)


def _is_quicker(module: nn.Linear, x: torch.Tensor) -> bool:
    """Or nearly: a clock is coarse, other work on the machine must not decide, and here a small weight stays in the
    cache, as it does not in a forward."""
    transposed = _as(module, TransposedLinear)
    ours, stock = [], []
    repeats = 6 if module.weight.numel() < 1 << 22 else 3
    for _ in range(repeats):  # the first of either pays for the making of its kernel
        ours.append(_seconds(lambda: transposed(x)))
        stock.append(_seconds(lambda: F.linear(x, module.weight, module.bias)))
    return min(ours) < 1.5 * min(stock) + 1e-4


def _seconds(run: Callable[[], Any]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def _is_product(y: torch.Tensor, x: torch.Tensor, module: nn.Linear) -> bool:
    """Right to within the rounding of a sum in any order, which is what may be asked of float32."""
    some = torch.linspace(0, module.out_features - 1, min(256, module.out_features)).long()
    weight, bias = module.weight[some].double(), 0.0 if module.bias is None else module.bias[some].double()
    exact = x.double() @ weight.t() + bias
    bound = x.double().abs() @ weight.abs().t() + abs(bias)
    terms = module.in_features + 1
    return bool(((y[:, some] - exact).abs() <= terms * torch.finfo(y.dtype).eps * bound).all())


def _become(module: Any, kind: type[SlicedLinear]) -> None:
    if kind is PackedLinear:
        _pack(module)
        return
    if kind is TransposedLinear:
        _align(module.weight)
    module.__class__ = kind


def _pack(module: Any) -> None:
    packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
    del module.weight
    module.__class__ = PackedLinear
    module.packed = packed


def _unpack(module: Any) -> None:
    weight = nn.Parameter(module.packed.to_dense(), requires_grad=False)
    del module.packed
    module.__class__ = nn.Linear
    module.__dict__.pop("most", None)
    module.weight = weight
