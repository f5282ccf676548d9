"""MLA (multi-head latent attention of DeepSeek) for vLLM: a backend for decode and one for prefill.

vLLM's classes absorb weights, separate prefill from decode and combine chunks of context. The
backend has two calls. Decode reads the latent KV cache, one row of latent and rotary columns (576)
per token, whose first 512 columns are the values. Prefill has varlen sequences with different head
dimensions of keys and values.
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional

import torch
from torch import Tensor
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from .._c import abi, choice
from .._c.options import Options
from .._torch import calls
from .._torch.decode import attention_with_kvcache
from ..errors import Unsupported
from .vllm import LATENT_NAME, NAME
from .vllm_backend import CACHES, refuse_cache_dtype, used_pages, write_rows
from .vllm_dcp import without_keys


class RocflashMLABackend(MLACommonBackend):
    """Capabilities, which vLLM queries before it selects a backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", *CACHES]

    @staticmethod
    def get_name() -> str:
        return LATENT_NAME

    @staticmethod
    def get_impl_cls() -> type:
        return RocflashMLAImpl

    @staticmethod
    def get_builder_cls() -> type:
        return RocflashMLAMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # see supports_head_size

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 0 < head_size <= abi.limits().max_head_dim

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: Optional[str],
        *rest: Any,
        **named: Any,
    ) -> Optional[str]:
        if kv_cache_dtype in CACHES and CACHES[kv_cache_dtype] is not dtype:
            return f"a cache of {kv_cache_dtype} under queries of {dtype} not supported"
        return None


class RocflashMLAMetadataBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    # A batch with equal numbers of queries per sequence is one call, captured or not.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.UNIFORM
    supports_non_causal_multi_token_decode: ClassVar[bool] = True


class RocflashMLAImpl(MLACommonImpl[MLACommonMetadata]):
    """Decode of one layer."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Optional[list[float]],
        sliding_window: Optional[int],
        kv_cache_dtype: str,
        logits_soft_cap: Optional[float],
        attn_type: str,
        kv_sharing_target_layer_name: Optional[str],
        **mla_args: Any,
    ) -> None:
        refuse_cache_dtype(RocflashMLABackend, kv_cache_dtype)
        for name, x in (
            ("alibi_slopes", alibi_slopes),
            ("sliding_window", sliding_window),
            ("logits_soft_cap", logits_soft_cap),
        ):
            if x:
                # Prefill is computed with another backend, which does not support it.
                raise Unsupported(
                    f"{name} is {x}; MLA in vLLM does not support it, so it must be None"
                )
        if attn_type != AttentionType.DECODER:
            raise Unsupported(
                f"attn_type is {attn_type!r}; for MLA it must be {AttentionType.DECODER.value!r}"
            )
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla_args,
        )
        self.supports_quant_query_input = False

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes new rows of the latent KV cache to their slots; vLLM's operator is GPU-only.

        Only quantized caches have a scale. vLLM has skip_scale since 0.33.
        """
        if kv_cache.is_cuda:
            super().do_kv_cache_update(
                kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale
            )
        elif kv_cache.numel():
            rows = torch.cat([kv_c_normed, k_pe.reshape(kv_c_normed.shape[0], -1)], dim=-1)
            write_rows(kv_cache, rows, slot_mapping.flatten())

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Optional[Tensor]]:
        """(out (tokens, heads, latents), lse (tokens, heads)) over the cache, (blocks, block size,
        latents and rotary).

        q is (tokens, heads, latents and rotary), or both parts.
        """
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        metadata = attn_metadata.decode
        sequences = metadata.seq_lens.shape[0]
        tokens, heads = q.shape[:2]
        each, rest = divmod(tokens, sequences) if sequences else (1, 0)
        if rest:
            raise Unsupported(
                f"q has {tokens} tokens of {sequences} sequences; all must have the same number"
            )
        over_ranks = self.dcp_world_size > 1
        if over_ranks and each > 1 and attn_metadata.causal:
            raise Unsupported(
                "causal is True with several queries per sequence; with decode context parallelism "
                "it must be False"
            )
        rows = kv_c_and_k_pe_cache.unsqueeze(2)
        out, lse = attention_with_kvcache(
            q.view(sequences, each, heads, -1),
            rows,
            rows[..., : self.kv_lora_rank],
            cache_seqlens=metadata.seq_lens,
            page_table=used_pages(metadata.block_table, attn_metadata.max_seq_len, rows),
            page_table_name="block_table",
            softmax_scale=self.scale,
            causal=bool(attn_metadata.causal) and each > 1,
            want_lse=self.need_to_return_lse_for_decode,
        )
        if lse is not None:
            lse = without_keys(lse).transpose(1, 2).reshape(tokens, heads)
        return out.view(tokens, heads, -1), lse


class RocflashMLAPrefill(MLAPrefillBackend):
    """Prefill: new tokens over themselves, and over chunks of the preceding context."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return NAME

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        sizes = (
            mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim,
            mla_dimensions.v_head_dim,
        )
        return all(0 < size <= abi.limits().max_head_dim for size in sizes)

    def supports_out(self) -> bool:
        return True

    def run_prefill_new_tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        return_softmax_lse: bool,
        out: Optional[Tensor] = None,
        output_scale: Optional[Tensor] = None,
    ) -> Any:
        if output_scale is not None:
            raise Unsupported(
                "output_scale is given; quantized outputs are not supported, so it must be None"
            )
        m = self._prefill_metadata
        lengths = (m.query_start_loc, m.query_start_loc, m.max_query_len, m.max_query_len)
        found = self._run(q, k, v, lengths, True, out)
        return found if return_softmax_lse else found[0]

    def run_prefill_context_chunk(
        self, chunk: Any, q: Tensor, k: Tensor, v: Tensor, out: Optional[Tensor] = None
    ) -> tuple[Tensor, Tensor]:
        lengths = (chunk.query_start_loc, chunk.cu_seq_lens, chunk.max_query_len, chunk.max_seq_len)
        return self._run(q, k, v, lengths, False, out)

    def _run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: tuple[Any, ...],
        causal: bool,
        out: Optional[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """(out (tokens, heads, v's size), lse (heads, tokens))."""
        options = Options(
            cu_seqlens_q=lengths[0],
            cu_seqlens_k=lengths[1],
            max_seqlen_q=lengths[2],
            max_seqlen_k=lengths[3],
            causal=causal,
            softmax_scale=self.scale,
            backend=choice.current(),
        )
        found, lse, _ = calls.forward(q, k, v, options, out=out)
        return found, lse
