"""SGLang's class of an attention backend.

SGLang has a row of cache slots per request, and a pool of keys and values per layer. The block
table is computed from the rows once per batch, for all layers, within a captured graph too: lengths
and tables are never read on the host, except those that SGLang passes as Python numbers.

Supported: extend and decode, alone and mixed, with windows, separate pools for windowed layers,
chunked attention, softcap, sinks and MLA. Rejected by name: speculative verification, cross
attention, quantized caches.

With MLA the pool has one row of latent and rotary columns per token, whose first columns are the
values. SGLang passes absorbed queries, except for prompts without a prefix: these come with keys
and values of all heads, which are not in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from torch import Tensor

from .._c import choice
from .._c.options import Options
from .._torch import calls
from .._torch.decode import attention_with_kvcache
from .._torch.options import as_int32
from ..errors import Unsupported

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass
class Metadata:
    """A batch: the lengths and block tables of its sequences."""

    lengths: Tensor  # (b,), the new keys included
    table: Tensor  # (b, pages)
    window_table: Optional[Tensor] = None  # likewise in the pool of windowed layers
    window_slots: Optional[Tensor] = None  # slots of new keys in that pool
    cu_seqlens_q: Optional[Tensor] = None  # extend: where each sequence's queries start
    max_seqlen_q: int = 1
    has_prefix: bool = True  # extend: whether a sequence has keys before the new ones


class RocflashAttnBackend(AttentionBackend):
    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        _check(model_runner)
        self.device = model_runner.device
        self.page_size = model_runner.page_size
        self.max_context_len = model_runner.model_config.context_len
        self.is_mla = bool(model_runner.use_mla_backend)
        self.attention_chunk = getattr(model_runner, "attention_chunk_size", None) or 0
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.has_window_pool = (
            isinstance(self.token_to_kv_pool, SWAKVPool)
            and self.token_to_kv_pool.swa_layer_nums > 0
        )
        self.forward_metadata: Optional[Metadata] = None
        self._static: Optional[Metadata] = None  # for graphs: as large as any batch

    # The batch.

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Without a graph: tables as wide as the longest sequence."""
        b = forward_batch
        longest = _as_int(b.seq_lens_cpu.max()) if len(b.seq_lens_cpu) else 0
        found = Metadata(
            as_int32("seq_lens", b.seq_lens, may_read=False),
            *self._tables(b.req_pool_indices, longest),
        )
        if self.has_window_pool and b.out_cache_loc is not None:
            found.window_slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(
                b.out_cache_loc
            )
        if not b.forward_mode.is_decode_or_idle():
            _check_mode(b.forward_mode)
            starts = torch.cumsum(b.extend_seq_lens, dim=0, dtype=torch.int32)
            found.cu_seqlens_q = torch.nn.functional.pad(starts, (1, 0))
            found.max_seqlen_q = max((_as_int(n) for n in b.extend_seq_lens_cpu), default=0)
            found.has_prefix = any(_as_int(n) for n in b.extend_prefix_lens_cpu)
        self.forward_metadata = found

    def _tables(self, rows: Tensor, longest: int) -> tuple[Tensor, Optional[Tensor]]:
        """Block tables of these requests, with the columns of a sequence of `longest` keys."""
        slots_of_pages = self.req_to_token[:, : max(longest, 1) : self.page_size].index_select(
            0, rows
        )
        return self._pages(slots_of_pages), (
            self._pages(self.token_to_kv_pool.translate_loc_from_full_to_swa(slots_of_pages))
            if self.has_window_pool
            else None
        )

    def _pages(self, slots_of_pages: Tensor) -> Tensor:
        """Slots of the first keys of pages as page numbers; -1 (unused) stays -1."""
        return as_int32(
            "req_to_token",
            torch.div(slots_of_pages, self.page_size, rounding_mode="floor"),
            may_read=False,
        )

    # Graphs: the same with static memory, for decode only.

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        pages = -(-self.max_context_len // self.page_size)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._static = Metadata(zeros(max_bs), zeros(max_bs, pages))
        if self.has_window_pool:
            self._static.window_table = zeros(max_bs, pages)
            self._static.window_slots = zeros(max_num_tokens, dtype=torch.int64)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Selects the static memory of a batch of this size, independent of values."""
        mode, whole = forward_batch.forward_mode, self._static
        if not mode.is_decode_or_idle():
            raise Unsupported(
                f"forward_mode is {_name(mode)} in a graph; it must be DECODE or IDLE"
            )
        assert whole is not None, "init_cuda_graph_state comes first"
        size = forward_batch.batch_size

        def first(x: Optional[Tensor]) -> Optional[Tensor]:
            return None if x is None else x[:size]

        self.forward_metadata = Metadata(
            whole.lengths[:size],
            whole.table[:size],
            first(whole.window_table),
            first(whole.window_slots),
        )

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Fills the static memory with operations of fixed shapes, which a graph captures."""
        b, m = forward_batch, self.forward_metadata
        assert m is not None
        size = m.lengths.shape[0]
        m.lengths.copy_(b.seq_lens[:size])
        table, window_table = self._tables(b.req_pool_indices[:size], self.max_context_len)
        m.table.copy_(table)
        if m.window_table is not None and m.window_slots is not None:
            assert window_table is not None
            m.window_table.copy_(window_table)
            slots = b.out_cache_loc[:size]
            m.window_slots.copy_(self.token_to_kv_pool.translate_loc_from_full_to_swa(slots))

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    # A layer.

    def forward_extend(
        self,
        q: Tensor,
        k: Optional[Tensor],
        v: Optional[Tensor],
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **given: Any,
    ) -> Any:
        m = self.forward_metadata
        assert m is not None and m.cu_seqlens_q is not None
        arguments = {"cu_seqlens_q": m.cu_seqlens_q, "max_seqlen_q": m.max_seqlen_q}
        bidirectional = (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)
        causal = layer.attn_type not in bidirectional
        if self.is_mla and layer.qk_head_dim != self._latent_columns(layer):
            _check_layer(layer, given)
            return self._forward_new(q, k, v, layer, forward_batch, save_kv_cache)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, given, causal, arguments)

    def forward_decode(
        self,
        q: Tensor,
        k: Optional[Tensor],
        v: Optional[Tensor],
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **given: Any,
    ) -> Any:
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, given, True, {})

    def _forward(
        self,
        q: Tensor,
        k: Optional[Tensor],
        v: Optional[Tensor],
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
        given: dict[str, Any],
        causal: bool,
        arguments: dict[str, Any],
    ) -> Any:
        _check_layer(layer, given)
        m = self.forward_metadata
        assert m is not None
        if save_kv_cache and k is not None:
            write_loc = KVWriteLoc.for_layer(forward_batch, layer, swa_loc=m.window_slots)
            # The pool of MLA takes no scales.
            scales = () if self.is_mla else (layer.k_scale, layer.v_scale)
            self.token_to_kv_pool.set_kv_buffer(layer, write_loc, k, v, *scales)
        keys, values = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        heads, size = layer.tp_q_head_num, layer.v_head_dim
        rows = q.reshape(-1, heads, layer.qk_head_dim)
        out = getattr(forward_batch, "_attn_output", None)
        out = (
            rows.new_empty(rows.shape[0], heads, size) if out is None else out.view(-1, heads, size)
        )
        left = layer.sliding_window_size
        windowed = left is not None and left > -1
        single = not arguments  # decoding: one query per sequence
        found = attention_with_kvcache(
            rows[:, None] if single else rows,
            self._paged(keys, layer.tp_k_head_num, layer.qk_head_dim),
            self._paged(values, layer.tp_v_head_num, size),
            cache_seqlens=m.lengths,
            page_table=m.window_table if windowed and m.window_table is not None else m.table,
            softmax_scale=layer.scaling,
            causal=causal,
            window=(left, 0 if causal else left) if windowed else None,
            attention_chunk=self.attention_chunk if layer.use_irope else 0,
            softcap=layer.logit_cap,
            sinks=given.get("sinks"),
            out=out[:, None] if single else out,
            want_lse=bool(given.get("return_lse")),
            **arguments,
        )
        if not given.get("return_lse"):
            return out.view(-1, heads * size)
        lse = found[1][:, :, 0] if single else found[1].transpose(0, 1)
        return out, lse.contiguous()

    def _latent_columns(self, layer: Any) -> int:
        return int(self.token_to_kv_pool.get_key_buffer(layer.layer_id).shape[-1])

    def _forward_new(
        self,
        q: Tensor,
        k: Optional[Tensor],
        v: Optional[Tensor],
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool,
    ) -> Any:
        """Prompts of MLA without a prefix: over the new keys of all heads, not over the pool."""
        m = self.forward_metadata
        assert m is not None
        if k is None or v is None or save_kv_cache:
            raise Unsupported(
                "save_kv_cache is True; for MLA with keys of all heads it must be False, and k and "
                "v given"
            )
        if m.has_prefix:
            raise Unsupported(
                "extend_prefix_lens is not 0; with keys of all heads it must be, since the prefix "
                "is in the pool"
            )
        wants_lse = bool(getattr(forward_batch, "mha_return_lse", False))
        heads, size = layer.tp_q_head_num, layer.v_head_dim
        options = Options(
            cu_seqlens_q=m.cu_seqlens_q,
            cu_seqlens_k=m.cu_seqlens_q,
            max_seqlen_q=m.max_seqlen_q,
            max_seqlen_k=m.max_seqlen_q,
            causal=True,
            softmax_scale=layer.scaling,
            backend=choice.current(),
        )
        out, lse, _ = calls.forward(
            q.reshape(-1, heads, layer.qk_head_dim),
            k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.reshape(-1, layer.tp_v_head_num, size),
            options,
        )
        out = out.reshape(-1, heads * size)
        return (out, lse.transpose(0, 1).contiguous()) if wants_lse else out

    def _paged(self, pool: Tensor, heads: int, size: int) -> Tensor:
        """A pool of rows as (pages, page size, heads, size), without a copy."""
        return pool.view(-1, self.page_size, heads, size)


def _as_int(x: Any) -> int:
    """A number that SGLang has on the host, as an int."""
    return int(x)


def _name(mode: Any) -> str:
    return getattr(mode, "name", str(mode))


def _check(runner: Any) -> None:
    """Rejects unsupported models and cache dtypes."""
    if runner.model_config.is_encoder_decoder:
        raise Unsupported(
            "attention_backend is rocflash; it does not support encoder-decoder models"
        )
    if runner.kv_cache_dtype not in _DTYPES:
        raise Unsupported(
            f"kv_cache_dtype is {runner.kv_cache_dtype}; allowed are float16, bfloat16 and float32"
        )
    translator = getattr(runner, "kv_index_translator", None)
    if translator is not None and translator.is_translating:
        raise Unsupported(
            "attention_backend is rocflash; it does not support the unified memory pool"
        )


def _check_mode(mode: Any) -> None:
    if _name(mode) not in ("EXTEND", "MIXED", "SPLIT_PREFILL"):
        raise Unsupported(
            f"forward_mode is {_name(mode)}; it must be EXTEND, MIXED, SPLIT_PREFILL, DECODE or "
            "IDLE"
        )


def _check_layer(layer: Any, given: dict[str, Any]) -> None:
    for name, x in given.items():
        if name not in ("sinks", "return_lse") and x is not None:
            raise Unsupported(
                f"{name} is given; rocflash's backend does not support it, so it must be None"
            )
    if layer.is_cross_attention:
        raise Unsupported(
            "is_cross_attention is True; rocflash's backend does not support it, so it must be "
            "False"
        )
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        raise Unsupported(
            f"logit_capping_method is {layer.logit_capping_method!r}; it must be 'tanh'"
        )
    if layer.xai_temperature_len is not None and layer.xai_temperature_len > 0:
        raise Unsupported(f"xai_temperature_len is {layer.xai_temperature_len}; it must be -1")
