"""Decode context parallelism (DCP) of vLLM: each rank has every n-th part of a sequence's cache.

A rank computes the queries of all ranks over its own keys before the new ones, without a causal
mask. vLLM combines the partial results of the ranks by their lse, and returns to each rank its
heads. The new keys, which every rank has, are computed by themselves and combined with that. A
rank's keys are not adjacent, so ALiBi and windows are rejected.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._torch import calls
from ..errors import Unsupported

_ALLOWED = "with decode context parallelism it must be None"


def check(alibi_slopes: Any) -> None:
    if alibi_slopes is not None:
        raise Unsupported(f"alibi_slopes is {alibi_slopes}; {_ALLOWED}")


class Ranks:
    """Which keys of a sequence are on this rank."""

    def __init__(self, size: int, rank: int, config: Any, device: Any) -> None:
        self.size, self.rank = size, rank
        self.interleave = config.parallel_config.cp_kv_cache_interleave_size
        # Graphs refer to this memory.
        self.lens = torch.zeros(
            config.scheduler_config.max_num_seqs, dtype=torch.int32, device=device
        )

    def context_lens(self, common: Any) -> Tensor:
        """The number of keys before the new ones on this rank, per sequence."""
        from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

        starts = common.query_start_loc
        before = common.seq_lens - (starts[1:] - starts[:-1])
        local = get_dcp_local_seq_lens(before, self.size, self.rank, self.interleave)
        found = self.lens[: local.shape[0]]
        found.copy_(local)
        return found


def ranks_of(kv_cache_spec: Any, config: Any, device: Any) -> Optional[Ranks]:
    """None where the ranks do not share the cache of these layers."""
    if config.parallel_config.decode_context_parallel_size == 1:
        return None
    from vllm.distributed.parallel_state import get_dcp_world_size_and_rank

    size, rank = get_dcp_world_size_and_rank(kv_cache_spec.dcp_sharded)
    return Ranks(size, rank, config, device) if size > 1 else None


def has_context(common: Any) -> bool:
    """Whether any sequence has keys before the new ones. All ranks must agree, since they
    communicate then; so it is derived from the whole lengths.
    """
    longest = common.seq_lens_cpu_upper_bound
    if longest is None:
        return True
    starts = common.query_start_loc_cpu
    n = longest.shape[0]
    return bool((longest > starts[1 : n + 1] - starts[:n]).any())


def attend(
    impl: Any, query: Tensor, key: Any, value: Any, kv_cache: Tensor, m: Any, output: Tensor
) -> None:
    """One layer's attention; key and value are the new ones."""
    from .vllm_backend import attend_packed, attend_paged, used_pages

    if impl.left >= 0:
        raise Unsupported(
            f"sliding_window is {impl.left + 1}; {_ALLOWED}, unless every rank has all of the "
            "layer's keys"
        )
    tokens = query.shape[0]
    arguments = impl.arguments(m.query_start_loc, m.max_query_len, m.causal)
    own_lse = attend_packed(query, key[:tokens], value[:tokens], out=output, **arguments)
    if not m.has_context:
        return
    from vllm.distributed.parallel_state import get_dcp_group

    group = get_dcp_group()
    everywhere = group.all_gather(query.contiguous(), dim=1)
    # Sinks are counted once, with the new keys.
    arguments = {**arguments, "causal": False, "sinks": None}
    partial = torch.empty_like(everywhere)
    keys, values = impl.split(kv_cache)
    lse = attend_paged(
        everywhere,
        keys,
        values,
        m.context_lens,
        used_pages(m.block_table, m.max_seq_len, keys),
        out=partial,
        want_lse=True,
        **arguments,
    )
    assert lse is not None
    by_tokens = without_keys(lse).transpose(0, 1).contiguous()
    context, lse = impl.combine_ranks(partial, by_tokens, group, return_lse=True)
    parts, lses = torch.stack((context, output)), torch.stack((lse.transpose(0, 1), own_lse))
    calls.combine(parts[:, None], lses[:, None], output[None], torch.empty_like(own_lse)[None])


def without_keys(lse: Tensor) -> Tensor:
    """The lse of rows without keys as -inf: vLLM combines with weights exp(lse)."""
    return torch.where(lse == torch.inf, -lse, lse)


def combine_of(config: Any) -> Any:
    """vLLM's function that combines the ranks' results, by its configuration."""
    from vllm.v1.attention.ops import dcp

    by_all_to_all = config.parallel_config.dcp_comm_backend == "a2a"
    return dcp.dcp_a2a_lse_reduce if by_all_to_all else dcp.cp_lse_ag_out_rs
