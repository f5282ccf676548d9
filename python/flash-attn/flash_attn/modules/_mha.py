"""A multi-head attention block: projections, rotary embedding, attention, KV cache.

Parameter names are upstream's, so checkpoints load: Wqkv (or Wq and Wkv), dwconv_*, out_proj.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flash_attn import flash_attn_with_kvcache
from flash_attn.layers.rotary import RotaryEmbedding
from flash_attn.modules.attention import (
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
    get_alibi_slopes,
)
from rocflash.dropin import InvalidArgument, Unsupported

__all__ = ["MHA", "LinearResidual"]


class LinearResidual(nn.Linear):
    """A linear layer that also returns its input, for a residual branch."""

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(input), input


def _cached(kv: Tensor, inference_params: Any, layer_idx: Optional[int]) -> Tensor:
    """Appends kv (b, s, 2, hk, d) to this layer's cache and returns all keys and values."""
    cache = _layer_cache(kv.shape[3], kv.shape[4], kv, inference_params, layer_idx)
    first, start = inference_params.batch_size_offset, inference_params.seqlen_offset
    rows, end = slice(first, first + kv.shape[0]), start + kv.shape[1]
    if rows.stop > cache.shape[0] or end > cache.shape[1]:
        raise InvalidArgument(
            f"inference_params has a cache of {cache.shape[0]} sequences of {cache.shape[1]} keys; "
            "it must "
            f"have at least {rows.stop} of {end}"
        )
    cache[rows, start:end] = kv
    return cache[rows, :end]


def _layer_cache(
    heads: int, head_dim: int, like: Tensor, inference_params: Any, layer_idx: Optional[int]
) -> Tensor:
    if layer_idx is None:
        raise InvalidArgument(
            "layer_idx is None; generation finds the layer's cache with it, so it must be given"
        )
    caches = inference_params.key_value_memory_dict
    if layer_idx not in caches:
        shape = (inference_params.max_batch_size, inference_params.max_seqlen, 2, heads, head_dim)
        caches[layer_idx] = like.new_empty(shape)
    return caches[layer_idx]


class MHA(nn.Module):
    """Multi-head self- and cross-attention.

    fused_bias_fc selects upstream's kernel for projections; it has no effect here.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: Optional[int] = None,
        cross_attn: bool = False,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        layer_idx: Optional[int] = None,
        dwconv: bool = False,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: Optional[float] = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: Any = (-1, -1),
        fused_bias_fc: bool = False,
        use_flash_attn: bool = False,
        return_residual: bool = False,
        checkpointing: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.cross_attn = cross_attn
        self.causal = causal
        self.layer_idx = layer_idx
        self.dwconv = dwconv
        self.rotary_emb_dim = rotary_emb_dim
        self.use_flash_attn = use_flash_attn
        self.return_residual = return_residual
        self.checkpointing = checkpointing
        self.num_heads = num_heads
        self.num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        self.softmax_scale = softmax_scale
        if num_heads % self.num_heads_kv:
            raise InvalidArgument(
                f"num_heads_kv is {self.num_heads_kv}; num_heads, {num_heads}, must be a multiple "
                "of it"
            )
        if embed_dim % num_heads:
            raise InvalidArgument(
                f"embed_dim is {embed_dim}; it must be a multiple of num_heads, {num_heads}"
            )
        windowed = tuple(window_size) != (-1, -1)
        if (use_alibi or windowed) and not use_flash_attn:
            name = "use_alibi" if use_alibi else "window_size"
            raise InvalidArgument(f"use_flash_attn is False; with {name} it must be True")
        if cross_attn and rotary_emb_dim:
            raise InvalidArgument(
                f"rotary_emb_dim is {rotary_emb_dim}; with cross_attn it must be 0: keys of "
                "another sequence have no position among the queries"
            )
        self.head_dim = embed_dim // num_heads
        kv_dim = 2 * self.head_dim * self.num_heads_kv
        slopes = None
        if use_alibi:
            slopes = torch.tensor(get_alibi_slopes(num_heads), device=device, dtype=torch.float32)
        self.alibi_slopes = slopes
        self.window_size = window_size
        self.rotary_emb = None
        if rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim,
                base=rotary_emb_base,
                scale_base=rotary_emb_scale_base,
                interleaved=rotary_emb_interleaved,
                device=device,
            )
        self._make_projections(kv_dim, qkv_proj_bias, device, dtype)
        extras: dict[str, Any] = {"softmax_scale": softmax_scale, "attention_dropout": dropout}
        if use_flash_attn:
            extras.update(alibi_slopes=slopes, window_size=window_size)
        self.inner_attn = (FlashSelfAttention if use_flash_attn else SelfAttention)(
            causal, **extras
        )
        self.inner_cross_attn = (FlashCrossAttention if use_flash_attn else CrossAttention)(
            causal, **extras
        )
        self.out_proj = nn.Linear(
            embed_dim, embed_dim, bias=out_proj_bias, device=device, dtype=dtype
        )

    def _make_projections(self, kv_dim: int, bias: bool, device: Any, dtype: Any) -> None:
        linear = LinearResidual if self.return_residual else nn.Linear
        q_dim = self.embed_dim
        convolved = {"qkv": q_dim + kv_dim}
        if self.cross_attn:
            self.Wq = nn.Linear(q_dim, q_dim, bias=bias, device=device, dtype=dtype)
            self.Wkv = linear(q_dim, kv_dim, bias=bias, device=device, dtype=dtype)
            convolved = {"q": q_dim, "kv": kv_dim}
        else:
            self.Wqkv = linear(q_dim, q_dim + kv_dim, bias=bias, device=device, dtype=dtype)
        if self.dwconv:
            for name, width in convolved.items():
                layer = nn.Conv1d(
                    width, width, 3, padding=2, groups=width, device=device, dtype=dtype
                )
                setattr(self, f"dwconv_{name}", layer)

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: Optional[torch.dtype] = None
    ) -> Tensor:
        """A cache for one layer: (b, max_seqlen, 2, hk, d)."""
        shape = (batch_size, max_seqlen, 2, self.num_heads_kv, self.head_dim)
        weight = self.out_proj.weight
        return torch.empty(shape, dtype=dtype or weight.dtype, device=weight.device)

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        if not self.dwconv:
            return x
        layer = getattr(self, f"dwconv_{name}")
        return layer(x.transpose(1, 2))[..., :-2].transpose(1, 2).contiguous()

    def forward(
        self,
        x: Tensor,
        x_kv: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
        max_seqlen: Optional[int] = None,
        mixer_subset: Any = None,
        inference_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """x (b, s, hidden), or packed (total, hidden) with cu_seqlens and max_seqlen.

        x_kv: the source of keys in cross-attention. key_padding_mask (b, s): True for valid keys,
        not with use_flash_attn. mixer_subset: the queries to compute. inference_params: generation.
        """
        self._check_call(x, key_padding_mask, cu_seqlens, max_seqlen, inference_params)
        if cu_seqlens is not None:
            kwargs = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen, **kwargs}
        elif key_padding_mask is not None:
            kwargs = {"key_padding_mask": key_padding_mask, **kwargs}
        grouped = self.num_heads_kv != self.num_heads
        if self.cross_attn or mixer_subset is not None or grouped:
            context, residual = self._separate(x, x_kv, mixer_subset, inference_params, kwargs)
        else:
            context, residual = self._packed(x, inference_params, kwargs)
        out = self.out_proj(context.flatten(-2))
        return (out, residual) if self.return_residual else out

    def _check_call(
        self,
        x: Tensor,
        key_padding_mask: Optional[Tensor],
        cu_seqlens: Optional[Tensor],
        max_seqlen: Optional[int],
        inference_params: Any,
    ) -> None:
        if cu_seqlens is not None:
            if max_seqlen is None or not self.use_flash_attn or self.rotary_emb or self.dwconv:
                raise InvalidArgument(
                    "cu_seqlens is given; it requires max_seqlen and use_flash_attn, and excludes "
                    "rotary embedding and dwconv"
                )
            if key_padding_mask is not None:
                raise InvalidArgument(
                    "key_padding_mask is given with cu_seqlens; one of them must be None"
                )
        if key_padding_mask is not None and self.use_flash_attn:
            raise InvalidArgument(
                "key_padding_mask is given; with use_flash_attn it must be None: unpad and pass "
                "cu_seqlens"
            )
        if inference_params is not None and (cu_seqlens is not None or self.dwconv):
            raise InvalidArgument(
                "inference_params is given; with cu_seqlens or dwconv it must be None"
            )

    def _packed(self, x: Tensor, inference_params: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
        qkv, residual = self.Wqkv(x) if self.return_residual else (self.Wqkv(x), x)
        qkv = self._convolve("qkv", qkv).unflatten(-1, (3, -1, self.head_dim))
        if inference_params is not None:
            q, kv = qkv.select(-3, 0), qkv.narrow(-3, 1, 2)
            return self._with_cache(q, kv, inference_params), residual
        if self.rotary_emb is not None:
            qkv = self.rotary_emb(qkv)
        return self._run(self.inner_attn, qkv, **kwargs), residual

    def _separate(
        self, x: Tensor, x_kv: Optional[Tensor], subset: Any, inference_params: Any, kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.cross_attn:
            source = x if x_kv is None else x_kv
            q = self.Wq(x if subset is None else x[:, subset])
            kv, residual = self.Wkv(source) if self.return_residual else (self.Wkv(source), x)
            q, kv = self._convolve("q", q), self._convolve("kv", kv)
        else:
            qkv, residual = self.Wqkv(x) if self.return_residual else (self.Wqkv(x), x)
            qkv = self._convolve("qkv", qkv)
            q, kv = qkv[..., : self.embed_dim], qkv[..., self.embed_dim :]
            if subset is not None:
                q = q[:, subset]
        q = q.unflatten(-1, (-1, self.head_dim))
        kv = kv.unflatten(-1, (2, -1, self.head_dim))
        if inference_params is not None:
            return self._with_cache(q, kv, inference_params), residual
        if self.rotary_emb is not None:
            if subset is not None:
                raise InvalidArgument(
                    "mixer_subset is given; with rotary embedding it must be None"
                )
            q, kv = self.rotary_emb(q, kv)
        packed = kwargs
        if "cu_seqlens" in kwargs and "cu_seqlens_k" not in kwargs:
            packed = {
                **kwargs,
                "cu_seqlens_k": kwargs["cu_seqlens"],
                "max_seqlen_k": kwargs["max_seqlen"],
            }
        return self._run(self.inner_cross_attn, q, kv, **packed), residual

    def _run(self, attention: nn.Module, *tensors: Tensor, **kwargs: Any) -> Tensor:
        if self.checkpointing:
            return checkpoint(attention, *tensors, use_reentrant=False, **kwargs)
        return attention(*tensors, **kwargs)

    def _with_cache(self, q: Tensor, kv: Tensor, params: Any) -> Tensor:
        """Attention during generation: q and kv (b, s, ...) follow the keys of the cache."""
        start = params.seqlen_offset
        lengths = getattr(params, "lengths_per_sample", None)
        if start == 0 or not self.use_flash_attn:
            if self.rotary_emb is not None:
                q, kv = self.rotary_emb(q, kv, seqlen_offset=start, max_seqlen=params.max_seqlen)
            kv = _cached(kv, params, self.layer_idx)
            # The new queries are the last positions, so bottom-right alignment is right.
            return self.inner_cross_attn(q, kv)
        cache = _layer_cache(kv.shape[3], kv.shape[4], kv, params, self.layer_idx)
        first = params.batch_size_offset
        cache = cache[first : first + q.shape[0]]
        tables: dict[str, Any] = {}
        if self.rotary_emb is not None:
            self.rotary_emb._update_cos_sin_cache(params.max_seqlen, q.device, q.dtype)
            if self.rotary_emb.scale is not None:
                raise Unsupported(
                    "rotary_emb_scale_base is set; for generation with use_flash_attn it must be "
                    "None"
                )
            tables = {
                "rotary_cos": self.rotary_emb._cos_cached,
                "rotary_sin": self.rotary_emb._sin_cached,
                "rotary_interleaved": self.rotary_emb.interleaved,
            }
        return flash_attn_with_kvcache(
            q,
            cache[:, :, 0],
            cache[:, :, 1],
            kv[:, :, 0],
            kv[:, :, 1],
            cache_seqlens=start if lengths is None else lengths[first : first + q.shape[0]],
            softmax_scale=self.softmax_scale,
            causal=self.inner_cross_attn.causal,
            window_size=self.window_size,
            alibi_slopes=self.alibi_slopes,
            **tables,
        )
