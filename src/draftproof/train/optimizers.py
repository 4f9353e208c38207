"""Who takes a step: Muon for the layer's matrices, AdamW for the rest.

Muon makes every direction of a matrix' update equally long (Jordan et al. 2024, kellerjordan.github.io/posts/muon):
with it a head learns in a fraction of AdamW's steps (docs/decisions/0017). Its updates are scaled to the size of
AdamW's (Liu et al., 2502.16982). Output rows and norms stay with AdamW, as in both sources.
"""

from __future__ import annotations

import torch

from ..models.eagle import EagleHead
from .settings import Settings

_BETAS = 0.9, 0.95
_MOMENTUM = 0.95


def optimizers_of(head: EagleHead, settings: Settings) -> list[torch.optim.Optimizer]:
    """Of what is trained of a head. Of each group, `initial_lr` is the highest rate."""
    trained = [(name, weight) for name, weight in head.named_parameters() if weight.requires_grad]
    by_muon = {name for name, weight in trained if settings.muon_lr and weight.ndim == 2} - {"lm_head.weight"}
    matrices = [weight for name, weight in trained if name in by_muon]
    others = [weight for name, weight in trained if name not in by_muon]
    found: list[torch.optim.Optimizer] = []
    if matrices:
        found.append(
            torch.optim.Muon(
                matrices,
                lr=settings.muon_lr,
                weight_decay=settings.weight_decay,
                momentum=_MOMENTUM,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    found.append(
        torch.optim.AdamW(others, lr=settings.lr, betas=_BETAS, weight_decay=settings.weight_decay, fused=True)
    )
    for group in (group for each in found for group in each.param_groups):
        group["initial_lr"] = group["lr"]
    return found
