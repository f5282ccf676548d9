"""Multi-head attention whose heads are split over the processes of a group.

Each process projects the whole input to its own heads, computes attention, and adds its part of the
output. With sequence_parallel the rows of input and output are split too: gathered before,
scattered after.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flash_attn.modules._mha import MHA
from flash_attn.modules.attention import get_alibi_slopes
from rocflash.dropin import InvalidArgument


def _gathered(x: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts)


def _summed(x: Tensor, group: Any) -> Tensor:
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def _own_rows(x: Tensor, group: Any) -> Tensor:
    return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()


class _Enter(torch.autograd.Function):
    """The whole input from each one's rows (or as it is); gradients are summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, rows: bool) -> Tensor:
        ctx.group, ctx.rows = group, rows
        return _gathered(x, group) if rows else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad = _summed(grad, ctx.group)
        return (_own_rows(grad, ctx.group) if ctx.rows else grad), None, None


class _Leave(torch.autograd.Function):
    """The sum of all parts of the output, whole or one's own rows of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, rows: bool) -> Tensor:
        ctx.group, ctx.rows = group, rows
        x = _summed(x, group)
        return _own_rows(x, group) if rows else x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (_gathered(grad, ctx.group) if ctx.rows else grad), None, None


class ParallelMHA(MHA):
    """MHA over a process group; num_heads and num_heads_kv must divide by its size."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        process_group: Any,
        num_heads_kv: Optional[int] = None,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        layer_idx: Optional[int] = None,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: Optional[float] = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: Any = (-1, -1),
        use_flash_attn: bool = False,
        checkpointing: bool = False,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        world = dist.get_world_size(process_group)
        rank = dist.get_rank(process_group)
        heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        for name, heads in (("num_heads", num_heads), ("num_heads_kv", heads_kv)):
            if heads % world:
                raise InvalidArgument(
                    f"{name} is {heads}; it must be a multiple of the group's size, {world}"
                )
        head_dim = embed_dim // num_heads
        own = num_heads // world
        super().__init__(
            head_dim * own,
            own,
            num_heads_kv=heads_kv // world,
            softmax_scale=softmax_scale,
            dropout=dropout,
            causal=causal,
            layer_idx=layer_idx,
            rotary_emb_dim=rotary_emb_dim,
            rotary_emb_base=rotary_emb_base,
            rotary_emb_scale_base=rotary_emb_scale_base,
            rotary_emb_interleaved=rotary_emb_interleaved,
            use_alibi=use_alibi,
            window_size=window_size,
            use_flash_attn=use_flash_attn,
            checkpointing=checkpointing,
            device=device,
            dtype=dtype,
        )
        self.process_group = process_group
        self.sequence_parallel = sequence_parallel
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        width = (num_heads + 2 * heads_kv) * head_dim // world
        self.Wqkv = nn.Linear(embed_dim, width, bias=qkv_proj_bias, **made)
        # The bias of the output is added once, by the first process.
        bias = out_proj_bias and rank == 0
        self.out_proj = nn.Linear(head_dim * own, embed_dim, bias=bias, **made)
        if use_alibi:
            slopes = torch.tensor(get_alibi_slopes(num_heads)[rank * own : (rank + 1) * own])
            slopes = slopes.to(device=device, dtype=torch.float32)
            self.alibi_slopes = slopes
            self.inner_attn.alibi_slopes = self.inner_cross_attn.alibi_slopes = slopes

    def forward(  # type: ignore[override]
        self, x: Tensor, seqlen: Optional[int] = None, inference_params: Any = None, **kwargs: Any
    ) -> Tensor:
        """x (b, s, hidden), or rows (b * s, hidden) with seqlen; with sequence_parallel one's
        rows.
        """
        if self.sequence_parallel and seqlen is None:
            raise InvalidArgument(
                "seqlen is None; with sequence_parallel it must be given, since rows are split"
            )
        group = self.process_group
        whole = _Enter.apply(x, group, self.sequence_parallel)
        batched = whole if seqlen is None else whole.unflatten(0, (-1, seqlen))
        out = super().forward(batched, inference_params=inference_params, **kwargs)
        return _Leave.apply(
            out if seqlen is None else out.flatten(0, 1), group, self.sequence_parallel
        )
