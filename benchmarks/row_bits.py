"""Which shapes keep a row's bits on this machine?  python benchmarks/row_bits.py

For matrix products: row counts grouped by the bits they give to the same first row. For attention: how many rows change
with the number of query rows, their place and the KV length, unfolded and folded. Behind docs/decisions/0005.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 512, 1024]
PRODUCTS = [(576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576), (1536, 1536), (8960, 1536), (1536, 8960)]
HEADS = [(9, 3, 64), (12, 2, 128), (4, 1, 256), (8, 8, 80), (14, 2, 64), (32, 8, 128), (12, 12, 64)]
LENGTHS = [0, 3, 10, 180, 300, 509, 700, 1020, 1990]
STEP = 512


def product_classes(out_size: int, in_size: int, dtype: torch.dtype) -> list[list[int]]:
    """Row counts that give the first row the same bits."""
    torch.manual_seed(0)
    weight = (torch.randn(out_size, in_size) * 0.05).to(dtype)
    x = torch.randn(max(ROWS), in_size).to(dtype)
    classes: list[tuple[torch.Tensor, list[int]]] = []
    for rows in ROWS:
        first = F.linear(x[:rows], weight)[0].clone()
        for known, counts in classes:
            if torch.equal(known, first):
                counts.append(rows)
                break
        else:
            classes.append((first, [rows]))
    return [counts for _, counts in classes]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, slots: int, fold: bool) -> torch.Tensor:
    """q [heads, rows, size] -> the same, over `slots` keys of which row i sees length + i + 1."""
    heads, rows, size = q.shape
    kv_heads = k.shape[0]
    mask = torch.ones(rows, slots, dtype=torch.bool).tril(length)
    k, v = k[None, :, :slots], v[None, :, :slots]
    if fold:
        groups = heads // kv_heads
        folded = q.reshape(1, kv_heads, groups * rows, size)
        return F.scaled_dot_product_attention(folded, k, v, attn_mask=mask.repeat(groups, 1)).reshape(heads, rows, size)
    return F.scaled_dot_product_attention(q[None], k, v, attn_mask=mask, enable_gqa=True)[0]


def attention_differences(heads: int, kv_heads: int, size: int, dtype: torch.dtype, counts: list[int], fold: bool):
    """(rows that differ, rows compared): every row against the first time it was computed."""
    differ = compared = 0
    for trial in range(2):
        torch.manual_seed(trial)
        k, v = (torch.randn(kv_heads, 4096, size).to(dtype) for _ in range(2))
        queries = (torch.randn(heads, 64, size) * 3).to(dtype)
        for length in LENGTHS:
            known: dict[int, torch.Tensor] = {}
            for rows in counts:
                for start in range(0, 8, 3):
                    first = -(-(length + start + rows) // STEP) * STEP
                    for slots in (first, first + STEP):
                        out = attend(queries[:, start : start + rows], k, v, length + start, slots, fold)
                        for i in range(rows):
                            if start + i in known:
                                compared += 1
                                differ += not torch.equal(known[start + i], out[:, i])
                            else:
                                known[start + i] = out[:, i].clone()
    return differ, compared


def main() -> None:
    torch.set_grad_enabled(False)
    for dtype in (torch.bfloat16, torch.float32):
        for out_size, in_size in PRODUCTS:
            print(f"{dtype} product {out_size}x{in_size}: {product_classes(out_size, in_size, dtype)}", flush=True)
    for dtype in (torch.bfloat16, torch.float32):
        for shape in HEADS:
            few, fours = [1, 2, 3, 5, 6, 12, 32], [4, 8, 16, 32]
            loose = attention_differences(*shape, dtype, few, fold=False)
            padded = attention_differences(*shape, dtype, fours, fold=False)
            folded = attention_differences(*shape, dtype, fours, fold=True)
            print(
                f"{dtype} attention {shape}: any row count {loose[0]} of {loose[1]} differ; multiples of 4 "
                f"{padded[0]} of {padded[1]}; folded, multiples of 4 {folded[0]} of {folded[1]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
