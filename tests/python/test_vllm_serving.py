"""rocflash in vLLM as it serves: mixed batches, replayed graphs, drafts, context parallelism, and
rocflash as the default. On the CPU; vLLM's classes are mocks where it is not installed.
"""

from __future__ import annotations

import os
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import server_cases as cases
import servers
import torch
from child import python
from test_servers import close, mla_backend, reasons_against
from test_simulated_gpu import BUILT, SIMULATOR

CPU = torch.device("cpu")


def run(impl: Any, batch: cases.VllmBatch, metadata: Any) -> torch.Tensor:
    output = torch.full_like(batch.query, 7.0)
    impl.forward(cases.layer(), batch.query, batch.key, batch.value, batch.cache, metadata, output)
    return output


def filled(impl: Any, lengths: list[int], new: list[int]) -> cases.VllmBatch:
    batch = cases.VllmBatch(lengths, new, torch.float32, CPU)
    batch.fill(impl)
    slots = batch.slots(old=False)
    impl.do_kv_cache_update(cases.layer(), batch.key, batch.value, batch.cache, slots)
    return batch


@pytest.mark.parametrize(
    "drafts, new, decodes", [(0, [1, 1, 3, 7], 2), (2, [3, 1, 3, 7], 3), (0, [2, 7, 3, 1], 0)]
)
def test_mixed_batch(drafts: int, new: list[int], decodes: int, monkeypatch: Any) -> None:
    """Sequences that decode, with drafts or without, and prompts are two calls."""
    impl = cases.vllm_impl(sliding_window=9)
    batch = filled(impl, [40, 21, 20, 7], new)
    from rocflash.integrations import vllm_backend

    calls = []
    real = vllm_backend.attention_with_kvcache
    monkeypatch.setattr(
        vllm_backend,
        "attention_with_kvcache",
        lambda q, *rest, **given: (calls.append(len(q)), real(q, *rest, **given))[1],
    )
    metadata = cases.vllm_builder(CPU, drafts=drafts).build(0, batch.common())
    with servers.nothing_read():
        output = run(impl, batch, metadata)
    total = sum(new)
    close(output[:total], batch.expected(softmax_scale=0.2, window=(8, 0)))
    assert torch.equal(output[total:], torch.full_like(output[total:], 7.0))
    first = sum(new[:decodes])
    assert calls == ([first, total - first] if decodes else [total])


def test_a_graph_is_replayed_for_mixed_batches() -> None:
    """Graphs for all batches: what was captured depends only on the number of tokens."""
    from rocflash.integrations.vllm_backend import RocflashMetadataBuilder

    impl = cases.vllm_impl()
    assert RocflashMetadataBuilder._cudagraph_support.name == "ALWAYS"
    builder = cases.vllm_builder(CPU)
    batch = filled(impl, [20, 33, 9, 50], [1, 4, 2, 5])
    common = batch.common()
    # Captured with one query per sequence, and the longest lengths possible.
    captured = types.SimpleNamespace(**vars(common))
    captured.max_query_len, captured.max_seq_len = 12, 64
    captured.query_start_loc = torch.tensor([0, 3, 6, 9, 12], dtype=torch.int32)
    captured.query_start_loc_cpu = captured.query_start_loc.clone()
    captured.seq_lens = torch.full((4,), 64, dtype=torch.int32)
    metadata = builder.build_for_cudagraph_capture(captured)
    captured.query_start_loc.copy_(common.query_start_loc)
    captured.seq_lens.copy_(common.seq_lens)
    with servers.nothing_read():
        builder.update_draft_decode_metadata(metadata)
        output = run(impl, batch, metadata)
    close(output[:12], batch.expected(softmax_scale=0.2, causal=True))


class Group:
    """The ranks of a group, one thread each: what one gives, all get."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.given: list[Any] = [None] * size
        self.local = threading.local()

    def all(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.given[self.local.rank] = x
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat(self.all(x), dim=dim)

    def combine(self, out: torch.Tensor, lse: torch.Tensor, _: Any, return_lse: bool) -> Any:
        """As vLLM's operator: exp(-inf) is the weight of no keys."""
        assert return_lse and out.shape[:2] == lse.shape and not (lse == torch.inf).any()
        lses = torch.stack(self.all(lse))
        total = torch.logsumexp(lses, dim=0)
        weight = torch.where(lse == -torch.inf, 0.0, (lse - total).exp())
        parts = sum(self.all(out * weight[..., None]))
        rank, heads = self.local.rank, lse.shape[1] // self.world_size
        mine = slice(rank * heads, (rank + 1) * heads)
        return parts[:, mine], total[:, mine]


@pytest.mark.parametrize("lengths, new", [([20, 7, 33], [3, 7, 1]), ([5, 9, 8], [5, 9, 8])])
@pytest.mark.parametrize("kind", ["causal", "sinks", "softcap"])
def test_context_parallelism(
    kind: str, lengths: list[int], new: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks with every other key of the cache, each with half of the heads: as one rank."""
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0]) if kind == "sinks" else None
    softcap = 2.0 if kind == "softcap" else None
    servers.install_vllm()
    import vllm.distributed.parallel_state as state

    monkeypatch.setattr(cases, "KEY_HEADS", 1)  # ranks with the same KV heads share a cache
    group, impls, found = Group(2), [], {}
    batch = cases.VllmBatch(lengths, new, torch.float32, CPU)
    for rank in range(2):
        mine = None if sinks is None else sinks[2 * rank : 2 * rank + 2]
        impls.append(cases.vllm_impl(sinks=mine, logits_soft_cap=softcap))
        impls[rank].combine_ranks = group.combine
    monkeypatch.setattr(state, "get_dcp_group", lambda: group)
    monkeypatch.setattr(
        state, "get_dcp_world_size_and_rank", lambda enabled=True: (2, group.local.rank)
    )
    caches = [part_of(batch, impls[0], rank) for rank in range(2)]

    def of_rank(rank: int) -> None:
        group.local.rank = rank
        metadata = cases.vllm_builder(CPU, ranks=2).build(0, batch.common())
        output = torch.full_like(batch.query[:, :2], 7.0)
        query = batch.query[:, 2 * rank : 2 * rank + 2]
        new = batch.key, batch.value
        impls[rank].forward(cases.layer(), query, *new, caches[rank], metadata, output)
        found[rank] = output, metadata.has_context

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out = torch.cat([found[rank][0] for rank in range(2)], dim=1)
    assert found[0][1] == found[1][1] == (lengths != new)
    options = {"softcap": softcap or 0.0, "sinks": sinks}
    close(out[: sum(new)], batch.expected(softmax_scale=0.2, causal=True, **options))


def part_of(batch: cases.VllmBatch, impl: Any, rank: int) -> torch.Tensor:
    """The cache of one rank: every other key, adjacent in its pages."""
    cache = torch.full_like(batch.cache, float("nan"))
    for row, k, v, new in zip(batch.table.long(), batch.keys, batch.values, batch.new):
        k, v = k[: len(k) - new][rank::2], v[: len(v) - new][rank::2]
        at = torch.arange(len(k))
        slots = row[at // cases.BLOCK] * cases.BLOCK + at % cases.BLOCK
        impl.do_kv_cache_update(cases.layer(), k, v, cache, slots)
    return cache


def test_context_parallelism_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    from rocflash.integrations import vllm_dcp

    with pytest.raises(NotImplementedError, match="^alibi_slopes is .* with decode context"):
        vllm_dcp.check([0.5])
    impl = cases.vllm_impl(sliding_window=4)
    with pytest.raises(NotImplementedError, match="^sliding_window is 4; with decode context"):
        vllm_dcp.attend(impl, *[None] * 6)


def test_build_rejects() -> None:
    cases.vllm_impl()
    builder = cases.vllm_builder(CPU)
    common = cases.VllmBatch([5], [1], torch.float32, CPU).common()
    with pytest.raises(ValueError, match="^common_prefix_len is 16; it must be 0"):
        builder.build(16, common)
    for name, x in (("mm_req_doc_ranges", {0: [(1, 2)]}), ("rswa_prefix_lens", torch.ones(1))):
        given = types.SimpleNamespace(**vars(common), **{name: x})
        with pytest.raises(NotImplementedError, match=f"^{name} is given"):
            builder.build(0, given)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A platform of its own, which selects "theirs"."""
    servers.install_vllm()
    import vllm.platforms

    kind = type("Platform", (servers.VllmPlatform,), {})
    monkeypatch.setattr(vllm.platforms, "current_platform", kind(), raising=False)
    return kind


def selector(**given: Any) -> Any:
    about = {
        "head_size": 64, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None,
        "use_mla": False, "has_sink": True, "use_sparse": False, "use_mm_prefix": False,
        "use_per_head_quant_scales": False, "attn_type": "decoder", "has_sliding_window": True,
    }  # fmt: skip
    about.update(given)
    return types.SimpleNamespace(**about, _asdict=lambda: about)


def test_default(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On request rocflash comes before vLLM's own backends, where it supports the layer."""
    from rocflash.integrations import vllm

    for value in ("", "0"):
        monkeypatch.setenv(vllm.DEFAULT, value)
        vllm.register()
        assert platform.get_attn_backend_cls(None, selector()) == "theirs"
    monkeypatch.setenv(vllm.DEFAULT, "yes")
    with pytest.raises(ValueError, match="^ROCFLASH_VLLM_DEFAULT is 'yes'; it must be 0 or 1"):
        vllm.register()
    monkeypatch.setenv(vllm.DEFAULT, "1")
    vllm.register()
    vllm.register()
    path = vllm._CLASS
    assert platform.get_attn_backend_cls(None, selector()) == path
    assert platform.get_attn_backend_cls(None, attn_selector_config=selector(head_size=80)) == path
    latent = selector(use_mla=True, head_size=576, has_sink=False, has_sliding_window=False)
    assert platform.get_attn_backend_cls(None, latent, num_heads=16) == vllm._LATENT
    for unsupported in (
        selector(kv_cache_dtype="fp8"),
        selector(head_size=1024),
        selector(use_mm_prefix=True),
        selector(use_sparse=True),
    ):
        assert platform.get_attn_backend_cls(None, unsupported) == "theirs"
    # A backend that is requested stays.
    asked = types.SimpleNamespace(get_path=lambda: "asked")
    assert platform.get_attn_backend_cls(asked, selector()) == "asked"


def test_default_of_mla_prefill(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocflash.integrations import vllm

    monkeypatch.setenv(vllm.DEFAULT, "1")
    vllm.register()
    mla_backend()
    from rocflash.integrations.vllm_mla import RocflashMLAPrefill

    def of_size(size: int) -> Any:
        sizes = types.SimpleNamespace(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=size)
        return types.SimpleNamespace(dtype=torch.bfloat16, mla_dimensions=sizes)

    assert platform.get_mla_prefill_backend_cls(of_size(128)) is RocflashMLAPrefill
    assert platform.get_mla_prefill_backend_cls(of_size(1024)) == "theirs"


def test_declared_unsupported() -> None:
    """What the library does not have, vLLM learns before it selects the backend."""
    cases.vllm_impl()
    from rocflash.integrations.vllm_backend import RocflashBackend as backend

    assert reasons_against(backend, 64, use_mm_prefix=True) == [
        "partial multimodal token full attention not supported"
    ]
    for given in ("use_sparse", "use_per_head_quant_scales"):
        assert len(reasons_against(backend, 64, **{given: True})) == 1
    for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "nvfp4"):
        assert reasons_against(backend, 64, kv_cache_dtype=name)


SIMULATED = """
import os
os.environ.update(ROCFLASH_HIP_LIBRARY={library!r}, ROCFLASH_SIM_ARCH={arch!r})
import server_cases as cases
import torch
from rocflash._torch.simulated import on_simulator
torch.manual_seed(0)
kinds = (
    ({{"sliding_window": 9, "logits_soft_cap": 3.0}}, {{"window": (8, 0), "softcap": 3.0}}),
    ({{"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}}, {{"causal": True}}),
)
for given, expected in kinds:
    impl = cases.vllm_impl(**given)
    batch = cases.VllmBatch([300, 21, 90, 7], [1, 1, 70, 7], torch.float16, torch.device("cpu"))
    batch.fill(impl)
    slots = batch.slots(old=False)
    impl.do_kv_cache_update(cases.layer(), batch.key, batch.value, batch.cache, slots)
    metadata = cases.vllm_builder("cpu").build(0, batch.common())
    assert metadata.num_decodes == 2
    output = torch.empty_like(batch.query)
    with on_simulator() as launches:
        impl.forward(
            cases.layer(), batch.query, None, None, batch.cache, metadata, output
        )
    assert len(launches) == 2, launches
    expected.update({{"sinks": given.get("sinks")}})
    exact = batch.expected(softmax_scale=0.2, **expected)
    torch.testing.assert_close(output[:79], exact, rtol=0.01, atol=0.01)
"""


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_layer_on_the_simulator(arch: str) -> None:
    """A mixed batch by the kernels of AMD GPUs: decode with split-KV, and prompts."""
    if arch not in BUILT:
        pytest.skip(f"this library has no kernels for {arch}")
    code = SIMULATED.format(library=str(SIMULATOR), arch=arch)
    here = str(Path(__file__).parent)
    path = os.pathsep.join((here, os.environ.get("PYTHONPATH", "")))
    done = python("-c", code, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
