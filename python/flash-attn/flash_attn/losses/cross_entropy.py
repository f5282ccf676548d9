"""Cross entropy as a module."""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor, nn

from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from rocflash.dropin import InvalidArgument

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(nn.Module):
    """cross_entropy_loss, reduced over the rows that count."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise InvalidArgument(f"reduction is {reduction!r}; it must be mean, none or sum")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(
        self, input: Tensor, target: Tensor, precomputed_lse: Optional[Tensor] = None
    ) -> Any:
        losses = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            self.label_smoothing,
            self.logit_scale,
            self.lse_square_scale,
            self.ignore_index,
            self.inplace_backward,
            self.process_group,
        )
        if self.reduction == "mean":
            count = (target != self.ignore_index).sum()
            losses = losses[0].sum() / count, losses[1].sum() / count
        elif self.reduction == "sum":
            losses = losses[0].sum(), losses[1].sum()
        return losses if self.return_z_loss else losses[0]
