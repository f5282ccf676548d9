"""Cross entropy with smoothing, z-loss and a vocabulary split over processes.

It has the name of upstream's Triton kernel. Logits are the largest tensor of a training step, so
they are converted to f32 one block of rows at a time, and only the LSE of each row is saved for
backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rocflash.dropin import InvalidArgument

__all__ = ["cross_entropy_loss"]


_BLOCK = 1 << 22  # logits that are in f32 at a time: 16 MB


def _blocks(logits: Tensor, scale: float) -> Iterator[tuple[slice, Tensor]]:
    """Which rows, and their scaled logits in new f32 memory."""
    rows = max(1, _BLOCK // max(1, logits.shape[1]))
    for first in range(0, logits.shape[0], rows):
        which = slice(first, first + rows)
        yield which, logits[which].to(torch.float32, copy=True).mul_(scale)


def _sum_over(group: Any, x: Tensor) -> Tensor:
    torch.distributed.all_reduce(x, group=group)
    return x


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        precomputed_lse: Optional[Tensor],
        smoothing: float,
        scale: float,
        square: float,
        ignore_index: int,
        inplace_backward: bool,
        group: Any,
    ) -> tuple[Tensor, Tensor]:
        split = group is not None and torch.distributed.get_world_size(group) > 1
        world = torch.distributed.get_world_size(group) if split else 1
        first = torch.distributed.get_rank(group) * logits.shape[1] if split else 0
        classes = logits.shape[1] * world
        ignored = labels == ignore_index
        local = labels - first
        here = (local >= 0) & (local < logits.shape[1]) & ~ignored
        indices = local.where(here, torch.zeros_like(local))
        lse, target, total = (
            logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3)
        )
        for which, scaled in _blocks(logits, scale):
            target[which] = scaled.gather(1, indices[which, None]).squeeze(1) * here[which]
            total[which] = scaled.sum(-1)
            if precomputed_lse is None:
                lse[which] = scaled.logsumexp(-1)
        if precomputed_lse is not None:
            lse = precomputed_lse.float()
        elif split:
            parts = [torch.empty_like(lse) for _ in range(world)]
            torch.distributed.all_gather(parts, lse, group=group)
            lse = torch.stack(parts).logsumexp(0)
        if split:
            target, total = _sum_over(group, target), _sum_over(group, total)
        z_losses = square * lse.square()
        losses = lse - (1 - smoothing) * target - smoothing * total / classes + z_losses
        losses, z_losses = losses.masked_fill(ignored, 0), z_losses.masked_fill(ignored, 0)
        ctx.save_for_backward(logits, lse, indices, here, ignored)
        ctx.numbers = (smoothing, scale, square, classes, inplace_backward)
        ctx.mark_non_differentiable(z_losses)
        return losses, z_losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses: Tensor, _: Any) -> tuple[Any, ...]:
        logits, lse, indices, here, ignored = ctx.saved_tensors
        smoothing, scale, square, classes, inplace_backward = ctx.numbers
        result = logits if inplace_backward else torch.empty_like(logits)
        factor = (dlosses.float() * scale).masked_fill(ignored, 0)[:, None]
        for which, grad in _blocks(logits, scale):
            grad.sub_(lse[which, None]).exp_()
            grad *= (1 + 2 * square * lse[which])[:, None]
            grad -= smoothing / classes
            grad.scatter_add_(1, indices[which, None], -(1 - smoothing) * here[which, None].float())
            result[which].copy_(grad.mul_(factor[which]))
        return (result, *[None] * 8)


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """(losses, z_losses), f32 (rows,) each, of logits (rows, classes) and labels (rows,).

    losses include z_losses, which are lse_square_scale * lse^2. With process_group, logits are this
    process's share of the classes. inplace_backward overwrites logits with their gradient.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise InvalidArgument(
            f"labels has shape {tuple(labels.shape)}; logits, {tuple(logits.shape)}, must be "
            "(rows, classes) and labels (rows,)"
        )
    if precomputed_lse is not None and precomputed_lse.shape != labels.shape:
        raise InvalidArgument(
            f"precomputed_lse has shape {tuple(precomputed_lse.shape)}; it must be that of labels"
        )
    return _CrossEntropy.apply(
        logits,
        labels,
        precomputed_lse,
        label_smoothing,
        logit_scale,
        lse_square_scale,
        ignore_index,
        inplace_backward,
        process_group,
    )
