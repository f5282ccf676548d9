"""Rotary position embedding: the functions and the module of flash_attn.layers.rotary."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from flash_attn.ops.triton.rotary import apply_rotary
from rocflash.dropin import InvalidArgument, rotate_in_place

__all__ = [
    "ApplyRotaryEmb",
    "ApplyRotaryEmbKV_",
    "ApplyRotaryEmbQKV_",
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """(a, b) becomes (-b, a), for halves or for pairs of columns."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_emb_torch(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """The formula in x's own dtype, for x (b, s, h, d) and cos, sin (s, d/2) or (b, s, d/2)."""
    width = 2 * cos.shape[-1]
    if width > x.shape[-1]:
        raise InvalidArgument(
            f"cos rotates {width} columns; it must rotate at most those of x, {x.shape[-1]}"
        )

    def spread(table: Tensor) -> Tensor:
        doubled = table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)
        return doubled.unsqueeze(-2)

    part = x[..., :width]
    rotated = part * spread(cos) + rotate_half(part, interleaved) * spread(sin)
    return torch.cat((rotated, x[..., width:]), dim=-1)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """Rotary embedding of x (b, s, h, d) or packed (total, h, d), in f32."""
    return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Optional[Tensor] = None,
    sin_k: Optional[Tensor] = None,
    interleaved: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0,
    num_heads_q: Optional[int] = None,
) -> Tensor:
    """Rotates q and k inside qkv (b, s, 3, h, d), or (b, s, num_heads_q + 2 hk, d), in place."""
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        heads: Any = (slice(None), slice(None), 0), (slice(None), slice(None), 1)
    elif qkv.dim() == 4 and num_heads_q is not None and (qkv.shape[2] - num_heads_q) % 2 == 0:
        heads_k = (qkv.shape[2] - num_heads_q) // 2
        of_k = slice(num_heads_q, num_heads_q + heads_k)
        heads = (slice(None), slice(None), slice(num_heads_q)), (slice(None), slice(None), of_k)
    else:
        raise InvalidArgument(
            f"qkv has shape {tuple(qkv.shape)}; it must be (b, s, 3, heads, d), or with "
            "num_heads_q "
            "(b, s, num_heads_q + 2 * key heads, d)"
        )
    cos_k, sin_k = (cos if cos_k is None else cos_k), (sin if sin_k is None else sin_k)

    def rotate_both(x: Tensor, back: bool) -> None:
        for at, tables in zip(heads, ((cos, sin), (cos_k, sin_k))):
            apply_rotary(
                x[at],
                *tables,
                seqlen_offsets,
                interleaved=interleaved,
                inplace=True,
                conjugate=back,
            )

    return rotate_in_place(qkv, rotate_both)


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0,
) -> Tensor:
    """Rotates k inside kv (b, s, 2, h, d), in place."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise InvalidArgument(f"kv has shape {tuple(kv.shape)}; it must be (b, s, 2, heads, d)")

    def rotate_keys(x: Tensor, back: bool) -> None:
        apply_rotary(
            x[:, :, 0],
            cos,
            sin,
            seqlen_offsets,
            interleaved=interleaved,
            inplace=True,
            conjugate=back,
        )

    return rotate_in_place(kv, rotate_keys)


class ApplyRotaryEmb:
    """Upstream's autograd classes, reduced to `apply`."""

    apply = staticmethod(apply_rotary_emb)


class ApplyRotaryEmbQKV_:
    apply = staticmethod(apply_rotary_emb_qkv_)


class ApplyRotaryEmbKV_:
    apply = staticmethod(apply_rotary_emb_kv_)


class RotaryEmbedding(nn.Module):
    """Rotary embedding of q and k; scale_base enables the scaling of XPos."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: Optional[float] = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = float(base)
        self.interleaved = interleaved
        self.scale_base = scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None
        if scale_base is not None:
            columns = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
            scale = (columns + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Optional[Tensor] = None
        self._sin_cached: Optional[Tensor] = None
        self._cos_k_cached: Optional[Tensor] = None
        self._sin_k_cached: Optional[Tensor] = None

    def _compute_inv_freq(self, device: Any = None) -> Tensor:
        columns = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return self.base ** (-columns / self.dim)

    def _is_stale(self, seqlen: int, device: Any, dtype: Optional[torch.dtype]) -> bool:
        table = self._cos_cached
        return (
            table is None
            or seqlen > self._seq_len_cached
            or (device is not None and table.device != torch.device(device))
            or (dtype is not None and table.dtype != dtype)
            or (self.training and table.is_inference())
        )

    def _update_cos_sin_cache(
        self, seqlen: int, device: Any = None, dtype: Optional[torch.dtype] = None
    ) -> None:
        """Computes tables for positions up to seqlen, unless the cached ones suffice."""
        if not self._is_stale(seqlen, device, dtype):
            return
        self._seq_len_cached = seqlen
        positions = torch.arange(seqlen, device=device, dtype=torch.float32)
        # Angles of large positions need f32, also if the module has another dtype.
        frequencies: Any = self.inv_freq
        if frequencies.dtype != torch.float32 or frequencies.device != positions.device:
            frequencies = self._compute_inv_freq(device=positions.device)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos(), angles.sin()
        self._cos_k_cached = self._sin_k_cached = None
        base_scale: Any = self.scale
        if base_scale is not None:
            assert self.scale_base is not None
            power = (positions - seqlen // 2) / self.scale_base
            scale = base_scale.to(positions.device) ** power[:, None]
            self._cos_k_cached = (cos / scale).to(dtype)
            self._sin_k_cached = (sin / scale).to(dtype)
            cos, sin = cos * scale, sin * scale
        self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Optional[Tensor] = None,
        seqlen_offset: Union[int, Tensor] = 0,
        max_seqlen: Optional[int] = None,
        num_heads_q: Optional[int] = None,
    ) -> Any:
        """Rotates qkv in place, or, with kv, q (given as qkv) and the k inside kv; returns them."""
        if max_seqlen is not None:
            self._update_cos_sin_cache(max_seqlen, device=qkv.device, dtype=qkv.dtype)
        elif isinstance(seqlen_offset, int):
            length = qkv.shape[1] + seqlen_offset
            self._update_cos_sin_cache(length, device=qkv.device, dtype=qkv.dtype)
        elif self._cos_cached is None:
            raise InvalidArgument("seqlen_offset is a tensor; then max_seqlen must be given")
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None and sin is not None
        cos_k = cos if self._cos_k_cached is None else self._cos_k_cached
        sin_k = sin if self._sin_k_cached is None else self._sin_k_cached
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
