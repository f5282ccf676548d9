"""The three classes of a vLLM attention backend: backend, metadata builder, implementation.

A batch is one call over the paged KV cache for sequences that decode, and one for those with a
prompt or a chunk of it: decode then has split-KV next to long prompts too. Lengths, tables and
slots stay on the device: a call reads only shapes and numbers that vLLM has on the host, so it can
be captured in a graph. vLLM writes new keys to the cache with its own operator before the call.

With decode context parallelism (DCP) each rank has a part of the cache. vllm_dcp.py combines them.
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
from ..errors import InvalidArgument, Unsupported
from . import vllm_dcp
from .vllm import NAME

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
# Cache dtypes by name; "auto" is that of the model.
CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class RocflashBackend(AttentionBackend):
    """Capabilities, which vLLM queries before it selects a backend."""

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


def refuse_cache_dtype(backend: Any, kv_cache_dtype: str) -> None:
    if not backend.supports_kv_cache_dtype(kv_cache_dtype):
        allowed = ", ".join(backend.supported_kv_cache_dtypes)
        raise Unsupported(f"kv_cache_dtype is {kv_cache_dtype!r}; allowed are {allowed}")


@dataclass
class RocflashMetadata:
    """The batch metadata of `forward`; all tensors are on the device."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool
    # In a mixed batch the sequences that decode come first.
    num_decodes: int = 0
    num_decode_tokens: int = 0
    max_decode_len: int = 0
    prefill_start_loc: Optional[Tensor] = None  # None: the batch is one call
    # Decode context parallelism: this rank's keys before the new ones, and whether any rank has
    # some; None without it.
    context_lens: Optional[Tensor] = None
    has_context: bool = False


class RocflashMetadataBuilder(AttentionMetadataBuilder[RocflashMetadata]):
    # A captured launch covers as many queries per sequence as the captured batch has tokens, and
    # reads on the device how many there are. A graph can be replayed for mixed batches.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # vLLM puts sequences with up to this number of queries first.
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        self.ranks = vllm_dcp.ranks_of(kv_cache_spec, vllm_config, device)
        # A captured draft step reads lengths and tables from vLLM's memory; those of DCP are
        # computed here, once per batch.
        self.supports_draft_decode_metadata_update = self.ranks is None

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> RocflashMetadata:
        metadata = self._build(common_prefix_len, common_attn_metadata)
        if self.ranks is not None:
            metadata.has_context = vllm_dcp.has_context(common_attn_metadata)
        elif metadata.max_query_len > 1:
            self._divide(metadata, common_attn_metadata)
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> RocflashMetadata:
        """One call, whose launch does not depend on which sequences decode."""
        metadata = self._build(0, common_attn_metadata)
        metadata.has_context = self.ranks is not None
        return metadata

    def update_draft_decode_metadata(self, metadata: RocflashMetadata) -> None:
        """Nothing to do: the metadata refers to memory that vLLM updates."""

    def _divide(self, metadata: RocflashMetadata, common: Any) -> None:
        """Separates sequences that decode from prompts, if there are both."""
        from vllm.v1.attention.backends.utils import split_decodes_and_prefills

        decodes, prefills, tokens, _ = split_decodes_and_prefills(
            common, decode_threshold=self.reorder_batch_threshold
        )
        if decodes and prefills:
            metadata.num_decodes, metadata.num_decode_tokens = decodes, tokens
            metadata.max_decode_len = self.reorder_batch_threshold
            metadata.prefill_start_loc = common.query_start_loc[decodes:] - tokens

    def _build(self, common_prefix_len: int, common_attn_metadata: Any) -> RocflashMetadata:
        c = common_attn_metadata
        if common_prefix_len:
            raise InvalidArgument(
                f"common_prefix_len is {common_prefix_len}; it must be 0, since the backend "
                "requests no cascade attention"
            )
        if isinstance(c.causal, Tensor):
            raise Unsupported(
                "causal is a tensor, one value per sequence; it must be True or False"
            )
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens"):
            if getattr(c, name, None):
                raise Unsupported(f"{name} is given; the backend does not support it")
        context = None if self.ranks is None else self.ranks.context_lens(c)
        return RocflashMetadata(
            context_lens=context,
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

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: Optional[int] = None,
        alibi_slopes: Optional[list[float]] = None,
        sliding_window: Optional[int] = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: Optional[float] = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: Optional[str] = None,
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
        # vLLM's window includes the query's own key, flash_attn's only those before it.
        self.left = -1 if sliding_window is None else sliding_window - 1
        self.sliding_window = (self.left, self._right(attn_type not in _ENCODERS))
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        if self.dcp_world_size > 1:
            from vllm.config import get_current_vllm_config

            vllm_dcp.check(alibi_slopes)
            self.combine_ranks = vllm_dcp.combine_of(get_current_vllm_config())

    def _right(self, causal: bool) -> int:
        return 0 if causal and self.left >= 0 else self.left

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        kv_cache: Tensor,
        attn_metadata: Optional[RocflashMetadata],
        output: Tensor,
        output_scale: Optional[Tensor] = None,
        output_block_scale: Optional[Tensor] = None,
    ) -> Tensor:
        """Writes the attention of query (tokens, heads, size) to `output`, and returns it.

        kv_cache is (blocks, KV heads, block size, key and value concatenated), with any strides.
        """
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported(
                "output_scale is given; quantized outputs are not supported, so it must be None"
            )
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        m, tokens = attn_metadata, attn_metadata.num_actual_tokens
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        if self.attn_type in _ENCODERS:
            # No cache: each sequence attends to the rows of the call.
            assert key is not None and value is not None
            arguments = self.arguments(m.query_start_loc, m.max_query_len, False)
            attend_packed(
                query[:tokens], key[:tokens], value[:tokens], out=output[:tokens], **arguments
            )
        elif m.context_lens is not None:
            vllm_dcp.attend(self, query[:tokens], key, value, kv_cache, m, output[:tokens])
        else:
            self._attend_paged(query, self.split(kv_cache), m, output)
        return output

    def _attend_paged(
        self, query: Tensor, cache: tuple[Tensor, Tensor], m: RocflashMetadata, output: Tensor
    ) -> None:
        n, first, tokens = m.num_decodes, m.num_decode_tokens, m.num_actual_tokens
        table = used_pages(m.block_table, m.max_seq_len, cache[0])
        if m.prefill_start_loc is None:
            arguments = self.arguments(m.query_start_loc, m.max_query_len, m.causal)
            attend_paged(
                query[:tokens], *cache, m.seq_lens, table, out=output[:tokens], **arguments
            )
            return
        arguments = self.arguments(m.query_start_loc[: n + 1], m.max_decode_len, m.causal)
        attend_paged(
            query[:first], *cache, m.seq_lens[:n], table[:n], out=output[:first], **arguments
        )
        arguments = self.arguments(m.prefill_start_loc, m.max_query_len, m.causal)
        attend_paged(
            query[first:tokens], *cache, m.seq_lens[n:], table[n:], out=output[first:tokens],
            **arguments,
        )  # fmt: skip

    def arguments(self, starts: Tensor, longest: int, causal: bool) -> dict[str, Any]:
        """The options of a call with these packed queries."""
        return {
            "softmax_scale": self.scale,
            "causal": causal,
            "window": (self.left, self._right(causal)),
            "softcap": self.logits_soft_cap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
            "cu_seqlens_q": starts,
            "max_seqlen_q": longest,
        }

    def split(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as (blocks, block size, KV heads, size), without a copy."""
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes new keys and values to their slots; called before `forward`."""
        if self.attn_type in _ENCODERS:
            return
        keys, values = self.split(kv_cache)
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
    """Writes rows to slots of (blocks, block size, heads, size); a negative slot is padding."""
    used = slots >= 0
    slots, rows = slots[used].long(), rows[: slots.shape[0]][used]
    cache[slots // cache.shape[1], slots % cache.shape[1]] = rows.to(cache.dtype)


def used_pages(block_table: Tensor, max_seq_len: int, keys: Tensor) -> Tensor:
    """The block table without columns that no sequence uses: the number of splits is selected by
    its width. A graph may be replayed with longer sequences.
    """
    if keys.is_cuda and torch.cuda.is_current_stream_capturing():
        return block_table
    return block_table[:, : max(-(-max_seq_len // keys.shape[1]), 1)]


def attend_paged(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    *,
    out: Tensor,
    want_lse: bool = False,
    **given: Any,
) -> Optional[Tensor]:
    """Attention over pages, written to `out`; the lse (heads, tokens) if requested."""
    _, lse = attention_with_kvcache(
        query,
        keys,
        values,
        cache_seqlens=lengths,
        page_table=block_table,
        page_table_name="block_table",
        want_lse=want_lse,
        out=out,
        **given,
    )
    return lse


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    window: tuple[int, int],
    out: Tensor,
    **given: Any,
) -> Tensor:
    """Attention of varlen sequences, written to `out`; returns the lse (heads, tokens)."""
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
    _, lse, _ = calls.forward(query, key, value, options, out=out)
    return lse
