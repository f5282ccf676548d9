"""Batches as vLLM and SGLang pass them to rocflash's backends, and their expected results.

test_servers.py runs them on the CPU, test_gpu_clients.py on a GPU and in graphs.
"""

from __future__ import annotations

import types
from typing import Any

import servers
import torch

import rocflash

HEADS, KEY_HEADS, SIZE, BLOCK = 4, 2, 32, 16


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """(rows, heads, size) of one sequence, by the library's definition in double."""
    given = {
        name: x.cpu() if isinstance(x, torch.Tensor) else x
        for name, x in options.items()
        if x is not None
    }
    q, k, v = (x.cpu()[None] for x in (q, k, v))
    return rocflash.attention(q, k, v, backend="reference", **given)[0]


class VllmBatch:
    """Sequences with some keys in the cache and some new; blocks are in any order."""

    def __init__(
        self,
        lengths: list[int],
        new: list[int],
        dtype: torch.dtype,
        device: Any,
        heads_first: bool = True,
    ):
        self.lengths, self.new, self.device = lengths, new, device
        options = {"dtype": dtype, "device": device}
        wide = max(-(-n // BLOCK) for n in lengths)
        count = wide * len(lengths) + 1
        shape = (count, KEY_HEADS, BLOCK, 2 * SIZE)
        if heads_first:
            self.cache = torch.zeros(shape, **options)
        else:  # the other order in memory, under the same name
            self.cache = torch.zeros(count, BLOCK, KEY_HEADS, 2 * SIZE, **options).transpose(1, 2)
        self.table = (1 + torch.randperm(count - 1)).view(len(lengths), wide).int().to(device)
        self.keys = [torch.randn(n, KEY_HEADS, SIZE, **options) for n in lengths]
        self.values = [torch.randn(n, KEY_HEADS, SIZE, **options) for n in lengths]
        self.query = torch.randn(sum(new) + 3, HEADS, SIZE, **options)  # padded, as for a graph
        self.key, self.value = (self._last(rows) for rows in (self.keys, self.values))

    def _last(self, rows: list[torch.Tensor]) -> torch.Tensor:
        parts = [x[len(x) - n :] for x, n in zip(rows, self.new)]
        return torch.cat([*parts, parts[0].new_zeros(3, KEY_HEADS, SIZE)])

    def slots(self, old: bool) -> torch.Tensor:
        """Of the keys before the new ones, or of these."""
        found = []
        for row, length, new in zip(self.table.long(), self.lengths, self.new):
            positions = torch.arange(length, device=self.device)
            positions = positions[: length - new] if old else positions[length - new :]
            found.append(row[positions // BLOCK] * BLOCK + positions % BLOCK)
        return torch.cat(found)

    def common(self, causal: bool = True) -> Any:
        tensor = lambda x: torch.tensor(x, dtype=torch.int32, device=self.device)  # noqa: E731
        starts = [0, *torch.tensor(self.new).cumsum(0).tolist()]
        return types.SimpleNamespace(
            query_start_loc=tensor(starts),
            query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32),
            seq_lens=tensor(self.lengths),
            seq_lens_cpu_upper_bound=torch.tensor(self.lengths, dtype=torch.int32),
            num_reqs=len(self.new),
            num_actual_tokens=sum(self.new),
            max_query_len=max(self.new),
            max_seq_len=max(self.lengths),
            block_table_tensor=self.table,
            slot_mapping=self.slots(old=False),
            causal=causal,
            is_prefilling=None,
        )

    def fill(self, impl: Any) -> None:
        """The keys of earlier steps."""
        old = [
            torch.cat([x[: len(x) - n] for x, n in zip(rows, self.new)])
            for rows in (self.keys, self.values)
        ]
        impl.do_kv_cache_update(layer(), *old, self.cache, self.slots(old=True))

    def expected(self, **options: Any) -> torch.Tensor:
        parts = self.query[: sum(self.new)].split(self.new)
        return torch.cat(
            [attended(q, k, v, **options) for q, k, v in zip(parts, self.keys, self.values)]
        )


def layer() -> Any:
    one = torch.ones(())
    return types.SimpleNamespace(_q_scale=one, _k_scale=one, _v_scale=one)


def vllm_impl(**options: Any) -> Any:
    """A layer of rocflash's backend, looked up as in vLLM."""
    servers.install_vllm()
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from rocflash.integrations import vllm

    vllm.register()
    vllm.register()  # each process may load plugins again
    backend = AttentionBackendEnum.__members__["ROCFLASH"].get_class()
    return backend.get_impl_cls()(HEADS, SIZE, 0.2, KEY_HEADS, **options)


def vllm_builder(device: Any, ranks: int = 1, drafts: int = 0) -> Any:
    """A builder with the part of vLLM's configuration that it reads."""
    from rocflash.integrations.vllm_backend import RocflashBackend

    config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(
            decode_context_parallel_size=ranks, cp_kv_cache_interleave_size=1
        ),
        scheduler_config=types.SimpleNamespace(max_num_seqs=8),
        speculative_config=types.SimpleNamespace(
            num_speculative_tokens=drafts, parallel_drafting=False
        )
        if drafts
        else None,
    )
    spec = types.SimpleNamespace(dcp_sharded=True)
    return RocflashBackend.get_builder_cls()(spec, ["layer"], config, device)


class SglangRunner:
    """A model runner with requests in a pool; `requests` has the place of each key of each
    request.
    """

    def __init__(
        self,
        page_size: int,
        dtype: torch.dtype,
        device: Any,
        window: bool = False,
        context: int = 64,
    ):
        pages, self.device, self.page_size = 40, device, page_size
        like = (KEY_HEADS, SIZE, dtype, device)
        rows = pages * page_size
        self.token_to_kv_pool = (
            servers.WindowPool(rows, rows, *like) if window else servers.Pool(rows, *like)
        )
        if window:  # whole pages move together
            order = torch.randperm(pages)[:, None] * page_size + torch.arange(page_size)
            self.token_to_kv_pool.mapping = order.flatten().to(device)
        slots = (torch.randperm(pages)[:, None] * page_size + torch.arange(page_size)).flatten()
        requests = torch.full((4, context), -1, dtype=torch.int32)
        for n in range(4):
            have = slots[n * (rows // 4) : (n + 1) * (rows // 4)][:context]
            requests[n, : len(have)] = have.int()
        self.req_to_token_pool = types.SimpleNamespace(req_to_token=requests.to(device))
        self.model_config = types.SimpleNamespace(context_len=context, is_encoder_decoder=False)
        self.kv_cache_dtype, self.use_mla_backend, self.attention_chunk_size = dtype, False, None

    def backend(self) -> Any:
        """Created by name, as in SGLang."""
        servers.install_sglang()
        from rocflash.integrations import sglang

        sglang.register()
        sglang.register()
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        from rocflash.integrations import sglang_backend

        # Where SGLang is installed its own pools need a GPU.
        sglang_backend.SWAKVPool = servers.WindowPool
        return ATTENTION_BACKENDS["rocflash"](self)

    def batch(self, requests: list[int], lengths: list[int], new: list[int] | None = None) -> Any:
        """Decode without `new`, otherwise extend with that many keys."""
        rows = self.req_to_token_pool.req_to_token[requests].long()
        counts = [1] * len(lengths) if new is None else new
        slots = [row[n - c : n] for row, n, c in zip(rows, lengths, counts)]
        return types.SimpleNamespace(
            forward_mode=servers.Mode.DECODE if new is None else servers.Mode.EXTEND,
            batch_size=len(lengths),
            req_pool_indices=torch.tensor(requests, device=self.device),
            seq_lens=torch.tensor(lengths, device=self.device),
            seq_lens_cpu=torch.tensor(lengths),
            extend_seq_lens=None if new is None else torch.tensor(new, device=self.device),
            extend_seq_lens_cpu=new,
            extend_prefix_lens_cpu=None if new is None else [n - c for n, c in zip(lengths, new)],
            mha_return_lse=False,
            out_cache_loc=torch.cat(slots),
            out_cache_loc_is_physical=False,
        )

    def keys_of(self, request: int, length: int, layer_id: int) -> list[torch.Tensor]:
        slots = self.req_to_token_pool.req_to_token[request, :length].long()
        if layer_id:
            slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
        return [x[slots] for x in self.token_to_kv_pool.get_kv_buffer(layer_id)]


def sglang_layer(**given: Any) -> Any:
    servers.install_sglang()
    arguments = {
        "tp_q_head_num": HEADS, "tp_k_head_num": KEY_HEADS, "tp_v_head_num": KEY_HEADS,
        "qk_head_dim": SIZE,
        "v_head_dim": SIZE, "scaling": 0.2, "layer_id": 0, "logit_cap": 0.0,
        "sliding_window_size": -1,
        "is_cross_attention": False, "use_irope": False, "logit_capping_method": "tanh",
        "xai_temperature_len": -1,
        "k_scale": None, "v_scale": None,
    }  # fmt: skip
    from sglang.srt.layers.radix_attention import AttentionType

    kind = given.pop("attn_type", servers.SglangType.DECODER)
    return types.SimpleNamespace(**arguments | given, attn_type=AttentionType[kind.name])
