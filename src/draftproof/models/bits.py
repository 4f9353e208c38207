"""Which shapes give a row the same bits whatever company it keeps.

A matrix product may add up a row in another order when the number of rows changes, because the library picks another
kernel. Then the logits of a token depend on how many tokens were drafted beside it, and the same seed gives another
text. So forwards are cut and padded to row counts for which this machine, this model, this dtype and this number of
threads were MEASURED to give the same bits: its matrix products, its activations (a vector loop that is split among
threads computes its ragged ends in another way) and its attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from .attention import attend
from .products import SlicedLinear, plain
from .siblings import Shared, SiblingLinear
from .support import Trial, is_activation, try_out

NARROW = 64
"""Up to here a forward has a multiple of 4 rows; prompts come in multiples of `_WIDE`. Every count is measured."""

MOST = 512
"""Most rows of a forward where rows are padded."""

_WIDE = 64
_SLICE = 32  # whole tiles of the matrix units
_COUNTS = (*range(4, NARROW + 1, 4), *range(NARROW + _WIDE, MOST + 1, _WIDE))
_HUGE = 1 << 24  # numbers of a weight from which on only narrow counts are measured: an output layer sees no more

KV_STEP = 512  # the block that CPU attention walks the keys in
_KV_STEPS = (64, 128, 256)  # shorter buffers, if rows keep their bits in them
_TEXTS = (50, 120, 200, 300, 450, 520, 700, 1000)  # lengths on either side of the steps
_QUERY_MULTIPLES = (4, 8, 16, 32)  # the fused CPU attention takes its query rows in blocks of 32 or more
_QUERY_BLOCK = _QUERY_MULTIPLES[-1]
_QUERY_COUNTS = (64, 96, 128)  # of a prompt's chunk; longer ones would read keys that none of their rows sees
_MATES = (2, 3, 5, 8, 16)  # requests in one call of attention
_POOL = 16  # sample rows, each met at many places of a call


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Row counts of a forward: a multiple of `multiple`, at most `most`. KV lengths: a multiple of `kv_step`.

    Above 64 rows, where padded at all, they are multiples of 64: only those are measured.
    query_multiple, query_most: the same for one request's rows in attention; it costs little there to pad further.
    exact: every count the plan allows gave the same bits when it was measured.
    together: whether several requests may share a call of attention.
    """

    multiple: int
    most: int
    kv_step: int = KV_STEP
    exact: bool = False
    query_multiple: int = 1
    query_most: int = 128
    together: bool = True

    @property
    def wide(self) -> int:
        """What the rows of a prompt's forward are a multiple of."""
        return 1 if self.multiple == 1 else _WIDE

    def padded(self, rows: int) -> int:
        step = self.multiple if rows <= NARROW else self.wide
        return -(-rows // step) * step

    def padded_queries(self, rows: int) -> int:
        step = max(self.multiple, self.query_multiple)
        step = step if rows <= _QUERY_BLOCK or step == 1 else max(step, _QUERY_BLOCK)
        return -(-rows // step) * step


LAW_PLAN = RowPlan(multiple=1, most=512)
"""Nothing padded: fastest for one row, and the bits may depend on the row count."""


@torch.inference_mode()
def measure_rows(model: nn.Module) -> RowPlan:
    """The widest plan under which everything that adds up a row's numbers keeps its bits, on this machine."""
    trial = try_out(model) if isinstance(model, PreTrainedModel) else Trial(modules=set(model.modules()))
    modules = {name: module for name, module in model.named_modules() if module in trial.modules}
    if any(_has_other_products(name, module) for name, module in modules.items()):
        return LAW_PLAN
    like = next(weight for weight in model.parameters() if weight.is_floating_point())
    if not _set_slices([module for module in modules.values() if isinstance(module, SlicedLinear)], like):
        return LAW_PLAN
    counts = _COUNTS
    for run in _row_runs(modules.values(), like):
        most = _agreeing([run], counts)
        if most <= 4:
            return LAW_PLAN
        counts = [count for count in counts if count <= most]
    shapes = {(call.heads, call.kv_heads, call.key_size, call.value_size, call.softcap) for call in trial.calls}
    found = [_query_rows(shape, like) for shape in shapes]
    if (0, 0) in found:
        return LAW_PLAN
    queries = max((multiple for multiple, _ in found), default=1)
    query_most = min((most for _, most in found), default=_QUERY_COUNTS[-1])
    kv_step = max((_kv_step(shape, queries, like) for shape in shapes), default=KV_STEP)
    return RowPlan(
        multiple=4,
        most=counts[-1],
        kv_step=kv_step,
        exact=True,
        query_multiple=queries,
        query_most=query_most,
        together=all(_may_share_calls(shape, queries, kv_step, like) for shape in shapes),
    )


def _set_slices(layers: Sequence[SlicedLinear], like: torch.Tensor) -> bool:
    """Measure each distinct product and let its layers take their rows in slices that agree. False if none does, not
    even in slices of 4."""
    alike: dict[tuple, list[SlicedLinear]] = {}
    for layer in layers:
        alike.setdefault((*_kind_of(layer), layer.bias is None), []).append(layer)
    for same in alike.values():
        most = _rows_of(same[0], like)
        if not most and type(same[0]) is not SlicedLinear:
            for layer in same:
                plain(layer)
            most = _rows_of(same[0], like)
        if not most:
            return False
        for layer in same:
            layer.most = most
    _set_shared_slices(layers, like)
    return True


def _set_shared_slices(layers: Sequence[SlicedLinear], like: torch.Tensor) -> None:
    """The same for products that several layers share; a shared one that does not agree is given up."""
    limits: dict[tuple[int, int], int] = {}
    shared = [layer.shared for layer in layers if isinstance(layer, SiblingLinear) and layer.shared is not None]
    for one in dict.fromkeys(shared):
        shape = one.out_features, one.in_features
        if shape not in limits:
            limits[shape] = min(_rows_of(one, like), *(layer.most for layer in one.layers))
        if limits[shape]:
            one.most = limits[shape]
        else:
            one.dissolve()


def _rows_of(layer: SlicedLinear | Shared, like: torch.Tensor) -> int:
    counts = [n for n in _COUNTS if n <= NARROW or layer.in_features * layer.out_features < _HUGE]
    samples = _cancelling(layer).to(like)
    most = _agreeing([lambda index: layer.product(samples[index])], counts)
    return most if most < _SLICE else most - most % _SLICE


def _kind_of(layer: Any) -> tuple:
    if isinstance(layer, SlicedLinear):  # whose weight may be made when asked for
        return type(layer), layer.in_features, layer.out_features, layer.dtype
    return type(layer), *layer.weight.shape, layer.weight.dtype


def _has_other_products(name: str, module: nn.Module) -> bool:
    """Matrices outside of linear layers, such as experts', which see as many rows as chance sends them."""
    own = () if isinstance(module, nn.Linear | Conv1D | nn.Embedding) else module.parameters(recurse=False)
    return "experts" in name.split(".") or any(weight.ndim > 1 for weight in own)


_Run = Callable[[list[int]], torch.Tensor]
"""Which of the `_POOL` sample rows stand in a call, in order -> their results, rows first."""


def _agreeing(runs: Sequence[_Run], counts: Sequence[int]) -> int:
    """The last of `counts` before a row differs from what the first run gives it among counts[0]; 0 if none agrees."""
    known = torch.cat([runs[0](_window(at, counts[0])) for at in range(0, _POOL, counts[0])])
    agreed = 0
    for rows in counts:
        index = _window(rows // 4, rows)
        if not all(torch.equal(run(index), known[index]) for run in runs):
            break
        agreed = rows
    return agreed


def _window(start: int, rows: int) -> list[int]:
    return [(start + i) % _POOL for i in range(rows)]


def _row_runs(modules: Iterable[nn.Module], like: torch.Tensor) -> Iterator[_Run]:
    """The distinct products, small ones first, and the activations at every width that a product takes."""
    products, activations, widths = {}, {}, set[int]()
    for module in modules:
        if isinstance(module, SlicedLinear):
            widths.add(module.in_features)
        elif isinstance(module, nn.Linear | Conv1D):
            products[*_kind_of(module), module.bias is None] = module
        elif is_activation(module):
            activations[type(module)] = module
    for layer in sorted(products.values(), key=lambda layer: layer.weight.numel()):
        samples = _cancelling(layer).to(like)
        widths.add(samples.shape[1])
        yield partial(_over, layer, samples)
    for activation in activations.values():
        values = _ragged_values(activation, like)
        for width in sorted(widths) if len(values) else ():
            samples = values[torch.arange(_POOL * 2 * width, device=values.device) % len(values)].reshape(_POOL, -1)
            yield partial(_over, activation, samples[:, :width])
            # a gate that shares its product with another
            yield partial(_over, lambda x, of=activation: of(x[..., : x.shape[-1] // 2]), samples)


def _over(function: Callable, samples: torch.Tensor, index: list[int]) -> torch.Tensor:
    return function(samples[None, index])[0]


def _cancelling(layer: Any) -> torch.Tensor:
    """Sample rows for which 64 outputs of `layer` all but vanish. Rounding to bfloat16 hides the order of additions in
    9,999 of 10,000 ordinary results, but not in what is left over when the terms cancel."""
    weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
    width = getattr(layer, "in_features", weight.shape[-1])
    x = _normal(_POOL, width)
    if not weight.is_floating_point():
        return x
    some = torch.linspace(0, len(weight) - 1, min(64, len(weight), width // 2)).long().to(weight.device)
    bias = 0.0 if layer.bias is None else layer.bias[some].double().cpu()
    return _cancelled(x, weight[some].double().cpu(), bias)


def _cancelled(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """x, changed as little as makes x · row + bias vanish for every one of `rows`."""
    gram = rows @ rows.mT
    ridge = (1e-9 * gram.amax()).clamp(min=1e-300)  # rows may repeat or be zero
    gram += ridge * torch.eye(gram.shape[-1], dtype=gram.dtype)
    return x - torch.linalg.solve(gram, (x @ rows.mT + bias).mT).mT @ rows


def _ragged_values(activation: Callable, like: torch.Tensor) -> torch.Tensor:
    """Numbers to which `activation` gives other bits in a vector loop than at its end, where they are done singly. All
    that there are in 16 bits: if it is none, no row can tell where it stands."""
    if like.element_size() == 2:
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(like.dtype).to(like.device)
        every = every[every.isfinite()]
    else:
        every = (3 * _normal(2**16)).to(like)
    vector, single = activation(every), activation(torch.stack([every, every], -1)[:, 0])
    return every[(vector != single) & ~(vector.isnan() & single.isnan())]


def _query_rows(shape: tuple, like: torch.Tensor) -> tuple[int, int]:
    """The least multiple of one request's rows for which attention keeps their bits, also in a longer KV buffer, and
    the most rows; (0, 0) if there is none."""
    heads, kv_heads, key_size, value_size, softcap = shape
    groups, step = heads // kv_heads, KV_STEP
    q, k = _normal(1, heads, _POOL, key_size), _normal(1, kv_heads, 2 * step, key_size)
    visible = _normal(_POOL, 2 * step) > 0
    visible[:, step:] = False
    # values that cancel under these weights, for the reason given at _cancelling
    scores = q.reshape(1, kv_heads, groups * _POOL, key_size).to(like.dtype).double() @ k.to(like.dtype).double().mT
    weights = (scores * key_size**-0.5).masked_fill(~visible.repeat(groups, 1), float("-inf")).softmax(-1)[:, :, :128]
    v = _cancelled(_normal(1, kv_heads, value_size, 2 * step), weights).mT.contiguous()
    q, k, v = q.to(like), k.to(like), v.to(like)
    added = torch.zeros_like(visible, dtype=like.dtype).masked_fill(~visible, float("-inf")).to(like.device)

    def run(slots: int, index: list[int]) -> torch.Tensor:
        rows = q[:, :, index].reshape(1, kv_heads, groups * len(index), key_size)
        mask = added[index, :slots].repeat(groups, 1)[None, None]
        out = attend(rows, k[:, :, :slots], v[:, :, :slots], mask, None, softcap, step)
        return out.reshape(heads, len(index), value_size).transpose(0, 1)

    runs = [partial(run, slots) for slots in (step, 2 * step)]
    # heads of no multiple of 32 change so seldom (72: 2 rows in 100) that a few samples miss it: whole blocks only
    ragged = key_size % 32 or value_size % 32
    for multiple in _QUERY_MULTIPLES[-1:] if ragged else _QUERY_MULTIPLES:
        most = _agreeing(runs, [*range(multiple, _QUERY_BLOCK + 1, multiple), *_QUERY_COUNTS])
        if most >= _QUERY_BLOCK:
            return multiple, most
    return 0, 0


def _kv_step(shape: tuple, queries: int, like: torch.Tensor) -> int:
    """The least step of KV lengths in which rows have the bits that they have in steps of `KV_STEP`."""
    heads, kv_heads, key_size, value_size, softcap = shape
    if softcap is not None or like.device.type != "cpu":
        return KV_STEP
    rows, slots = heads // kv_heads * queries, 3 * KV_STEP
    q, k = _normal(1, kv_heads, rows, key_size), _normal(1, kv_heads, slots, key_size)
    scores = (q.to(like).double() @ k.to(like).double().mT) * key_size**-0.5
    steps = list(_KV_STEPS)
    for length in _TEXTS:
        weights = scores[..., :length].softmax(-1)
        v = _normal(1, kv_heads, slots, value_size)
        v[..., :length, :] = _cancelled(v[..., :length, :].mT, weights[:, :, :32]).mT
        added = torch.zeros(1, 1, rows, slots).to(like)
        added[..., length:] = float("-inf")
        args = q.to(like), k.to(like), v.to(like), added

        def run(step: int, length: int = length, args: tuple = args) -> torch.Tensor:
            end = -(-length // step) * step
            q, k, v, added = args
            return attend(q, k[:, :, :end], v[:, :, :end], added[..., :end], None, None, KV_STEP)

        known = run(KV_STEP)
        steps = [step for step in steps if torch.equal(run(step), known)]
    return min(steps, default=KV_STEP)


def _may_share_calls(shape: tuple, queries: int, kv_step: int, like: torch.Tensor) -> bool:
    """Whether a request's rows keep their bits beside other requests in one call, at the arena's stride, with as many
    rows and slots as the mates need."""
    heads, kv_heads, key_size, value_size, softcap = shape
    groups, most, slots, length = heads // kv_heads, max(_MATES), 2 * KV_STEP, 50
    k = _normal(most, kv_heads, 2 * slots, key_size).to(like)
    for rows in range(queries, _QUERY_BLOCK + 1, queries):
        q = _normal(most, kv_heads, groups * rows, key_size).to(like)
        weights = (q.double() @ k[:, :, :length].double().mT * key_size**-0.5).softmax(-1)[:, :, :32]
        v = _normal(most, kv_heads, 2 * slots, value_size)
        v[..., :length, :] = _cancelled(v[..., :length, :].mT, weights).mT
        v = v.to(like)
        added = torch.zeros(most, 1, groups * rows, slots).to(like)
        added[..., length:] = float("-inf")

        def run(first: int, count: int, end: int, args: tuple = (q, v, added)) -> torch.Tensor:
            some, (q, v, added) = slice(first, first + count), args
            return attend(q[some], k[some, :, :end], v[some, :, :end], added[some, ..., :end], None, softcap, KV_STEP)

        alone = torch.cat([run(i, 1, -(-length // kv_step) * kv_step) for i in range(most)])
        for count in _MATES:
            for end in (kv_step, KV_STEP + kv_step, slots):
                if end >= length and not torch.equal(run(0, count, end), alone[:count]):
                    return False
    return True


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
