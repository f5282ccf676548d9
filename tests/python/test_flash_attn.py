"""flash_attn's dense functions: a sample of upstream's test matrix, at upstream's tolerances."""

from __future__ import annotations

import pytest
import torch

from flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func
from reference import attention, check, heads_of, name_of, random_slopes, sample

LENGTHS = [(1, 239), (113, 203), (128, 217), (127, 127), (256, 512), (512, 256), (64, 1023)]
CASES = sample(
    44,
    17,
    dtype=[torch.float16, torch.bfloat16, torch.float32],
    kind=["mha", "gqa", "mqa"],
    d=[32, 40, 59, 64, 96, 111, 128, 160, 192, 256],
    lengths=LENGTHS,
    causal=[False, True],
    local=[False, True],
    alibi=[False, True],
    softcap=[0.0, 30.0],
    dropout=[0.0, 0.17],
    deterministic=[False, True],
)


def kept_share(s_dmask: torch.Tensor, weights: torch.Tensor) -> float:
    """The share of nonzero weights that dropout dropped."""
    there = weights > 0
    return ((s_dmask < 0) & there).sum().item() / max(there.sum().item(), 1)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_output_and_gradients(case: dict) -> None:
    dtype, d, causal = case["dtype"], case["d"], case["causal"]
    heads, heads_k = heads_of(case["kind"])
    sq, sk = case["lengths"]
    batch = 1 if sk > 500 else 2
    # Upstream's tests pass the window as a tensor of two.
    window = torch.randint(0, sk, (2,)) if case["local"] else (-1, -1)
    scale_up = 4 if case["softcap"] else 1  # so that the cap is felt
    q = (torch.randn(batch, sq, heads, d) * scale_up).to(dtype).requires_grad_()
    k = torch.randn(batch, sk, heads_k, d).to(dtype).requires_grad_()
    v = torch.randn(batch, sk, heads_k, d).to(dtype).requires_grad_()
    slopes = random_slopes(batch, heads) if case["alibi"] else None
    p = case["dropout"]
    out, lse, s_dmask = flash_attn_func(
        q,
        k,
        v,
        p,
        causal=causal,
        window_size=window,
        softcap=case["softcap"],
        alibi_slopes=slopes,
        deterministic=case["deterministic"],
        return_attn_probs=True,
    )
    assert lse.shape == (batch, heads, sq) and lse.dtype == torch.float32
    keep = None
    if p > 0:
        assert s_dmask.shape == (batch, heads, sq, sk)
        keep = s_dmask >= 0
    else:
        assert s_dmask.numel() == 0
    options = {
        "causal": causal,
        "window": window,
        "softcap": case["softcap"],
        "slopes": slopes,
        "keep": keep,
        "dropout_p": p,
    }
    exact, weights = attention(q, k, v, **options)
    baseline, weights_baseline = attention(q, k, v, exact=False, **options)
    check("out", out, exact, baseline, 2, 1e-5 if causal else 0)
    if p > 0:
        # exp(score - maximum), times the maximum's weight, is the weight.
        found = s_dmask.abs() * weights.amax(-1, keepdim=True)
        # Weights are made from the log-sum-exp, which f32 knows to 1e-6; upstream has no f32.
        check("weights", found, weights, weights_baseline, 2, 1e-5 if dtype == torch.float32 else 0)
        if not case["local"] and sq * sk > 10000:
            assert abs(kept_share(s_dmask, weights) - p) <= 0.01
    dout = torch.randn_like(out)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    exact_grads = torch.autograd.grad(exact, (q, k, v), dout)
    baseline_grads = torch.autograd.grad(baseline, (q, k, v), dout)
    for name, *three in zip(("dq", "dk", "dv"), grads, exact_grads, baseline_grads):
        check(name, *three, 3, 1e-5 if causal else 0)


@pytest.mark.parametrize(
    "case",
    sample(
        8,
        5,
        dtype=[torch.float16, torch.bfloat16],
        d=[32, 59, 64, 128],
        seqlen=[97, 128, 200, 257],
        causal=[False, True],
    ),
    ids=name_of,
)
@pytest.mark.parametrize("packed", ["qkv", "kv"])
def test_packed(case: dict, packed: str) -> None:
    """Gradients go through views of the packed tensor, at qkvpacked's stricter factor of 2."""
    dtype, d, s = case["dtype"], case["d"], case["seqlen"]
    qkv = torch.randn(2, s, 3, 4, d).to(dtype).requires_grad_()
    if packed == "qkv":
        out = flash_attn_qkvpacked_func(qkv, causal=case["causal"])
    else:
        out = flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=case["causal"])
    exact, _ = attention(*qkv.unbind(2), causal=case["causal"])
    baseline, _ = attention(*qkv.unbind(2), causal=case["causal"], exact=False)
    check("out", out, exact, baseline, 2, 1e-5)
    dout = torch.randn_like(out)
    three = (torch.autograd.grad(x, qkv, dout)[0] for x in (out, exact, baseline))
    check("dqkv", *three, 2, 1e-5)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sinks(dtype: torch.dtype, d: int) -> None:
    """s_aux, which transformers checks for, and its gradient."""
    q, k, v = (torch.randn(2, 130, 4, d).to(dtype).requires_grad_() for _ in range(3))
    sinks = torch.randn(4).to(dtype).requires_grad_()
    out = flash_attn_func(q, k, v, causal=True, s_aux=sinks)
    exact, _ = attention(q, k, v, causal=True, sinks=sinks)
    baseline, _ = attention(q, k, v, causal=True, sinks=sinks, exact=False)
    check("out", out, exact, baseline, 2, 1e-5)
    dout = torch.randn_like(out)
    grads = [torch.autograd.grad(x, (q, k, v, sinks), dout) for x in (out, exact, baseline)]
    for name, *three in zip(("dq", "dk", "dv", "dsinks"), *grads):
        check(name, *three, 3, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_one_query_one_key(dtype: torch.dtype) -> None:
    """The only weight is 1 whatever the score: out is v, dv is dout, and no other gradient is left
    but the rounding of out, with which backward computes."""
    q, k, v = (torch.randn(3, 1, 2, 64).to(dtype).requires_grad_() for _ in range(3))
    out = flash_attn_func(q, k, v)
    assert torch.equal(out, v)
    dout = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), dout)
    assert torch.equal(dv, dout)
    rounding = 64 * torch.finfo(dtype).eps
    assert dq.abs().max() <= rounding and dk.abs().max() <= rounding


def test_value_head_dim_differs() -> None:
    q, k = torch.randn(2, 50, 4, 96), torch.randn(2, 70, 2, 96)
    v = torch.randn(2, 70, 2, 48)
    out = flash_attn_func(q, k, v)
    assert out.shape == (2, 50, 4, 48)
    check("out", out, attention(q, k, v)[0], attention(q, k, v, exact=False)[0], 2)
