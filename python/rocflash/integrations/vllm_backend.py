"""vLLM's three classes of an attention backend, as its registry wants them: backend, metadata builder, implementation.

All of a batch is one call over pages, prefill and decode alike. Lengths, tables and slots stay on the device: a call
looks only at shapes and at numbers that vLLM has on the host anyway, so it can be captured into a graph. vLLM writes new
keys to the cache before it calls, by its own operator.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from .._c import abi, choice
from .._c.options import Options
from .._torch import calls
from .._torch.decode import attention_with_kvcache
from ..errors import Unsupported
from .vllm import NAME

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
# Caches of these names have elements of their own; "auto" has those of the model.
CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class RocflashBackend(AttentionBackend):
    """What vLLM asks before it chooses a backend."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", *CACHES]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type:
        return RocflashImpl

    @staticmethod
    def get_builder_cls() -> type:
        return RocflashMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 0 < head_size <= abi.limits().max_head_dim

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (
            AttentionType.DECODER,
            AttentionType.ENCODER_DECODER,
            *_ENCODERS,
        )

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Optional[str], *rest: Any, **named: Any,
    ) -> Optional[str]:
        if kv_cache_dtype in CACHES and CACHES[kv_cache_dtype] is not dtype:
            return f"a cache of {kv_cache_dtype} under queries of {dtype} not supported"
        return None


def refuse_cache_dtype(backend: Any, kv_cache_dtype: str) -> None:
    if not backend.supports_kv_cache_dtype(kv_cache_dtype):
        allowed = ", ".join(backend.supported_kv_cache_dtypes)
        raise Unsupported(f"kv_cache_dtype: {kv_cache_dtype!r}; allowed are {allowed}")


@dataclass
class RocflashMetadata:
    """A batch as `forward` takes it; all tensors are on the device."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool


class RocflashMetadataBuilder(AttentionMetadataBuilder[RocflashMetadata]):
    # A captured launch covers as many queries per sequence as the batch that was captured had. So a graph may be
    # replayed for batches of equal lengths, speculative ones among them, but not for any mixture.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table: bool = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> RocflashMetadata:
        c = common_attn_metadata
        if isinstance(c.causal, Tensor):
            raise Unsupported(
                "causal: is a tensor, one value per sequence; it must be True or False"
            )
        return RocflashMetadata(
            num_actual_tokens=c.num_actual_tokens,
            max_query_len=c.max_query_len,
            query_start_loc=c.query_start_loc,
            max_seq_len=c.max_seq_len,
            seq_lens=c.seq_lens,
            block_table=c.block_table_tensor,
            slot_mapping=c.slot_mapping,
            causal=c.causal,
        )

    def update_block_table(
        self, metadata: RocflashMetadata, blk_table: Tensor, slot_mapping: Tensor
    ) -> RocflashMetadata:
        updated = copy.copy(metadata)
        updated.block_table, updated.slot_mapping = blk_table, slot_mapping
        return updated


class RocflashImpl(AttentionImpl[RocflashMetadata]):
    """One layer's attention."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: Optional[int] = None,
        alibi_slopes: Optional[list[float]] = None, sliding_window: Optional[int] = None,
        kv_cache_dtype: str = "auto", logits_soft_cap: Optional[float] = None,
        attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: Optional[str] = None,
        sinks: Optional[Tensor] = None,
    ) -> None:
        refuse_cache_dtype(RocflashBackend, kv_cache_dtype)
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.num_queries_per_kv = self.num_heads // self.num_kv_heads
        self.alibi_slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        # vLLM counts the query's own key, flash_attn the keys before it.
        self.left = -1 if sliding_window is None else sliding_window - 1
        self.sliding_window = (self.left, self._right(attn_type not in _ENCODERS))
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def _right(self, causal: bool) -> int:
        return 0 if causal and self.left >= 0 else self.left

    def forward(
        self, layer: Any, query: Tensor, key: Optional[Tensor], value: Optional[Tensor], kv_cache: Tensor,
        attn_metadata: Optional[RocflashMetadata], output: Tensor, output_scale: Optional[Tensor] = None,
        output_block_scale: Optional[Tensor] = None,
    ) -> Tensor:
        """Writes the attention of query (tokens, heads, size) to `output`, and returns it.

        kv_cache is (blocks, key heads, block size, key and value side by side), whatever its strides.
        """
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported(
                "output_scale: is given; quantised outputs are not supported, it must be None"
            )
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        m, tokens = attn_metadata, attn_metadata.num_actual_tokens
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        if self.attn_type in _ENCODERS:
            # No cache: each sequence sees the rows that come with the call.
            assert key is not None and value is not None
            self._run(query[:tokens], key[:tokens], value[:tokens], m, output[:tokens], False)
        else:
            keys, values = self._split(kv_cache)
            self._run(query[:tokens], keys, values, m, output[:tokens], m.causal, m.block_table)
        return output

    def _run(
        self, query: Tensor, keys: Tensor, values: Tensor, m: RocflashMetadata, output: Tensor, causal: bool,
        block_table: Optional[Tensor] = None,
    ) -> None:
        told: dict[str, Any] = {
            "softmax_scale": self.scale,
            "causal": causal,
            "window": (self.left, self._right(causal)),
            "softcap": self.logits_soft_cap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "cu_seqlens_q": m.query_start_loc,
            "max_seqlen_q": m.max_query_len,
            "out": output,
        }
        if block_table is None:
            attend_packed(query, keys, values, **told)
        else:
            attention_with_kvcache(
                query,
                keys,
                values,
                cache_seqlens=m.seq_lens,
                page_table=block_table,
                page_table_name="block_table",
                want_lse=False,
                **told,
            )

    def _split(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as (blocks, block size, key heads, size), without a copy."""
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Puts new keys and values to their slots; called before `forward`."""
        if self.attn_type in _ENCODERS:
            return
        keys, values = self._split(kv_cache)
        if not kv_cache.is_cuda:  # vLLM's operator is a GPU's
            write_rows(keys, key, slot_mapping)
            write_rows(values, value, slot_mapping)
            return
        from vllm._custom_ops import reshape_and_cache_flash

        reshape_and_cache_flash(
            key,
            value,
            keys,
            values,
            slot_mapping,
            self.kv_cache_dtype,
            layer._k_scale,
            layer._v_scale,
        )


def write_rows(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    """Rows to their slots of (blocks, block size, heads, size); a negative slot is padding."""
    used = slots >= 0
    slots, rows = slots[used].long(), rows[: slots.shape[0]][used]
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens_q: Tensor, max_seqlen_q: int,
    window: tuple[int, int], out: Tensor, **given: Any,
) -> None:
    """Attention within sequences that lie one behind the other, into `out`."""
    options = Options(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_q,
        window_left=window[0],
        window_right=window[1],
        backend=choice.current(),
        **given,
    )
    calls.forward(query, key, value, options, out=out)
