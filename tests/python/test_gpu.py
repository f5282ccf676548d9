"""flash_attn and rocflash on a GPU: forward against torch in double, streams, graphs, unsupported
calls.

test_gpu_gradients.py has what follows forward.

Needs a GPU that torch can use (CUDA or ROCm); skipped without one.
"""

from __future__ import annotations

import pytest
import torch
from child import succeeds

import rocflash
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from reference import attention, heads_of, name_of, random_slopes, sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here")

CASES = sample(
    40,
    23,
    dtype=[torch.float16, torch.bfloat16],
    kind=["mha", "gqa", "mqa"],
    d=[32, 40, 59, 64, 96, 111, 128, 160, 192, 256],
    lengths=[(1, 239), (113, 203), (128, 217), (127, 127), (256, 512), (512, 256), (64, 1023)],
    causal=[False, True],
    local=[False, True],
    alibi=[False, True],
    softcap=[0.0, 30.0],
    dropout=[0.0, 0.17],
)


def tensors(
    sq: int = 128,
    sk: int = 200,
    h: int = 4,
    hk: int = 2,
    d: int = 64,
    dtype: torch.dtype = torch.float16,
) -> list[torch.Tensor]:
    shapes = ((2, sq, h, d), (2, sk, hk, d), (2, sk, hk, d))
    return [torch.randn(s).to(dtype) for s in shapes]


def on_gpu(*xs: torch.Tensor) -> list[torch.Tensor]:
    return [x.cuda() for x in xs]


def worst(x: torch.Tensor, y: torch.Tensor) -> float:
    return (x.detach().cpu().double() - y.detach().cpu().double()).abs().max().item()


def agree(
    found: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object
) -> None:
    """The error bound: at most twice the error of naive attention in the same dtype."""
    exact, _ = attention(q, k, v, exact=True, **options)
    baseline, _ = attention(q, k, v, exact=False, **options)
    assert worst(found, exact) <= 2 * worst(baseline, exact) + 1e-5


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_flash_attn_forward(case: dict) -> None:
    heads, heads_k = heads_of(case["kind"])
    sq, sk = case["lengths"]
    p = case["dropout"]
    q, k, v = tensors(sq, sk, heads, heads_k, case["d"], case["dtype"])
    if case["softcap"]:
        q = q * 4
    window = tuple(torch.randint(0, sk, (2,)).tolist()) if case["local"] else (-1, -1)
    slopes = random_slopes(2, heads) if case["alibi"] else None
    options = {"causal": case["causal"], "window_size": window, "softcap": case["softcap"]}
    out, lse, s_dmask = flash_attn_func(
        *on_gpu(q, k, v),
        p,
        alibi_slopes=None if slopes is None else slopes.cuda(),
        return_attn_probs=True,
        **options,
    )
    assert out.is_cuda and lse.shape == (2, heads, sq) and lse.dtype == torch.float32
    keep = (s_dmask >= 0).cpu() if p else None
    agree(
        out,
        q,
        k,
        v,
        causal=case["causal"],
        window=window,
        softcap=case["softcap"],
        slopes=slopes,
        keep=keep,
        dropout_p=p,
    )


def test_dropout_equals_that_of_the_cpu() -> None:
    q, k, v = tensors()
    options = {"dropout_p": 0.3, "rng_state": torch.tensor([5, 6]), "return_weights": True}
    _, here = rocflash.attention(q, k, v, **options)
    _, there = rocflash.attention(*on_gpu(q, k, v), **options)
    assert torch.equal(here < 0, there.cpu() < 0)
    assert worst(there, here) < 1e-3


def test_varlen_sequences() -> None:
    lengths = [70, 1, 0, 129]
    q, k, v = (torch.randn(sum(lengths), 4, 64).to(torch.bfloat16) for _ in range(3))
    cu = torch.tensor([0, 70, 71, 71, 200], dtype=torch.int32)
    gpu = on_gpu(q, k, v)
    out = flash_attn_varlen_func(*gpu, cu.cuda(), cu.cuda(), 129, 129, causal=True)
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end > begin:
            part = [x[begin:end][None] for x in (q, k, v)]
            agree(out[None, begin:end], *part, causal=True)
    found = rocflash.attention(*gpu, cu_seqlens_q=cu.cuda(), cu_seqlens_k=cu.cuda(), causal=True)
    assert torch.equal(found, out), "without max_seqlen, which is then found"


def test_paged_kv_cache() -> None:
    q, k, v = tensors(1, 64 * 3, 4, 2, 128, torch.bfloat16)
    order = torch.randperm(6)
    pages = [torch.empty(6, 64, 2, 128, dtype=torch.bfloat16) for _ in "kv"]
    for cache, x in zip(pages, (k, v)):
        cache[order] = x.reshape(6, 64, 2, 128)
    used = torch.tensor([150, 192], dtype=torch.int32)
    out = flash_attn_with_kvcache(
        *on_gpu(q, *pages),
        cache_seqlens=used.cuda(),
        block_table=order.reshape(2, 3).to(torch.int32).cuda(),
        causal=True,
    )
    for n in range(2):
        part = [q[n : n + 1], *(x[n : n + 1, : used[n]] for x in (k, v))]
        agree(out[n : n + 1], *part, causal=True)


@pytest.mark.parametrize(("page", "d"), [(16, 128), (24, 96), (64, 64), (256, 256), (16, 192)])
def test_prefill_with_paged_kv(page: int, d: int) -> None:
    """Neither rows after the last key of a page count, nor unused entries of the block table."""
    b, used = 2, [300, 389]
    each = -(-max(used) // page)
    q, k, v = (
        torch.randn(b, n, h, d).to(torch.bfloat16)
        for n, h in ((170, 4), (max(used), 2), (max(used), 2))
    )
    order = torch.randperm(b * each)
    table = order.reshape(b, each).to(torch.int32)
    pages = [torch.full((b * each, page, 2, d), torch.nan, dtype=torch.bfloat16) for _ in "kv"]
    for n, length in enumerate(used):
        for cache, x in zip(pages, (k, v)):
            for first in range(0, length, page):
                rows = x[n, first : min(first + page, length)]
                cache[table[n, first // page], : len(rows)] = rows
        table[n, -(-length // page) :] = (-1, 2**31 - 1)[n]
    lengths = torch.tensor(used, dtype=torch.int32)
    arguments = {"block_table": table.cuda(), "seqused_k": lengths.cuda(), "causal": True}
    out = rocflash.attention(*on_gpu(q, *pages), **arguments)
    near = rocflash.attention(*on_gpu(q, *pages), window=(90, 0), **arguments)
    for n, length in enumerate(used):
        part = [q[n : n + 1], *(x[n : n + 1, :length] for x in (k, v))]
        agree(out[n : n + 1], *part, causal=True)
        agree(near[n : n + 1], *part, causal=True, window=(90, 0))


def test_views_and_other_strides() -> None:
    qkv = torch.randn(2, 90, 3, 4, 64).to(torch.float16)
    q, k, v = qkv.unbind(2)
    agree(rocflash.attention(*qkv.cuda().unbind(2), causal=True), q, k, v, causal=True)
    bhsd = qkv.permute(2, 0, 3, 1, 4).contiguous()
    there = bhsd.cuda().transpose(2, 3).unbind(0)
    agree(rocflash.attention(*there), q, k, v)


def test_a_second_stream() -> None:
    """The call waits for the work of its stream and of no other."""
    q, k, v = on_gpu(*tensors(512, 512, 8, 8, 128))
    expected = rocflash.attention(q, k, v, return_weights=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = torch.zeros_like(q)
        torch.cuda._sleep(20_000_000)  # what follows must wait for it, and for the copy
        late.copy_(q)
        found = rocflash.attention(late, k, v, return_weights=True)
    torch.cuda.current_stream().wait_stream(stream)
    for x, y in zip(found, expected):
        assert torch.equal(x, y)


def test_a_graph() -> None:
    """Captured once, replayed with other inputs; s_dmask needs a workspace and two kernels."""
    q, k, v = on_gpu(*tensors())
    options = {"causal": True, "dropout_p": 0.2, "rng_state": torch.tensor([1, 2])}
    static = q.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rocflash.attention(static, k, v, return_weights=True, **options)
    for _ in range(3):
        static.copy_(torch.randn_like(q))
        graph.replay()
        expected = rocflash.attention(static, k, v, return_weights=True, **options)
        for x, y in zip(captured, expected):
            assert torch.equal(x, y)


def test_the_first_call_of_a_process_may_be_captured(tmp_path: object) -> None:
    """Loading kernels is not captured, even in the first call of a process."""
    code = (
        "import torch, rocflash\n"
        "q = torch.randn(1, 64, 2, 64, device='cuda', dtype=torch.float16)\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    out = rocflash.attention(q, q, q)\n"
        "graph.replay()\n"
        "assert torch.equal(out, rocflash.attention(q, q, q))\n"
    )
    succeeds(code)


def test_torch_compile() -> None:
    q, k, v = on_gpu(*tensors())

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attn_func(q * 2, k, v, causal=True) + 1

    found = torch.compile(layer, backend="aot_eager")(q, k, v)
    assert torch.equal(found, layer(q, k, v))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_other_than_the_current_one() -> None:
    q, k, v = tensors()
    expected = rocflash.attention(*on_gpu(q, k, v))
    found = rocflash.attention(*(x.to("cuda:1") for x in (q, k, v)))
    assert torch.cuda.current_device() == 0 and found.device.index == 1
    assert torch.equal(found.cpu(), expected.cpu())


def test_unsupported_on_gpus() -> None:
    q, k, v = on_gpu(*tensors())
    message = "q has dtype f64; GPU kernels take f32, f16 and bf16"
    with pytest.raises(rocflash.Unsupported, match=message):
        rocflash.attention(q.double(), k.double(), v.double())
    with pytest.raises(rocflash.InvalidArgument, match=r"backend is 2 \(reference\)"):
        rocflash.attention(q, k, v, backend="reference")
    with pytest.raises(rocflash.InvalidArgument, match="k is on cpu"):
        rocflash.attention(q, k.cpu(), v)
