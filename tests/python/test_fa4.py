"""FlashAttention-4's interface: results, gradients, conventions, and the clients that name it."""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

import flash_attn.cute
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func, interface
from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
from rocflash.errors import InvalidArgument, Unsupported

B, SQ, SK, H, HK, D, DV = 2, 6, 11, 4, 2, 16, 8


def inputs(*names: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = {
        "q": (B, SQ, H, D),
        "k": (B, SK, HK, D),
        "v": (B, SK, HK, DV),
        "sink": (H,),
        "qv": (B, SQ, H, DV),
    }
    made = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}
    return [made[name].requires_grad_() for name in names]


def naive(
    q: Optional[Tensor],
    k: Optional[Tensor],
    v: Tensor,
    qv: Optional[Tensor] = None,
    sink: Optional[Tensor] = None,
    left: Optional[int] = None,
    right: Optional[int] = None,
    softcap: float = 0.0,
    used: Optional[list[int]] = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse (b, h, sq)) in double."""
    group = H // v.shape[2]
    keys = v.double().repeat_interleave(group, 2)
    size, scores = 0, torch.zeros((), dtype=torch.float64)
    for x, y in ((q, k), (qv, v)):
        if x is not None and y is not None:
            size += x.shape[-1]
            y = y.double().repeat_interleave(group, 2)
            scores = scores + torch.einsum("bihd,bjhd->bhij", x.double(), y)
    scores = scores * size**-0.5
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    i, j = torch.arange(scores.shape[2])[:, None], torch.arange(scores.shape[3])
    masks = []
    for b in range(scores.shape[0]):
        length = scores.shape[3] if used is None else used[b]
        distance = j - i - (length - scores.shape[2])
        visible = j < length
        visible = visible if left is None else visible & (distance >= -left)
        masks.append(visible if right is None else visible & (distance <= right))
    visible = torch.stack([m.expand(scores.shape[2:]) for m in masks])[:, None]
    logits = scores.masked_fill(~visible, -torch.inf)
    if sink is not None:
        logits = torch.cat(
            (logits, sink.double()[None, :, None, None].expand(*scores.shape[:3], 1)), -1
        )
    lse = logits.logsumexp(-1)
    weights = torch.where(visible, (scores - lse[..., None].clamp(min=-1e30)).exp(), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, keys), lse


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for x, y in zip(found, expected):
        torch.testing.assert_close(x.double(), y.double(), atol=tolerance, rtol=tolerance)


def compare(
    found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], graded: list[Tensor]
) -> None:
    """Results, and gradients of a loss of both."""
    close(found, expected)
    finite = expected[1].isfinite()
    gradients = []
    for out, lse in (found, expected):
        weights = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape)
        loss = (out.double() * weights).sum() + (lse[finite].double() ** 2).sum()
        gradients.append(torch.autograd.grad(loss, graded))
    close(*gradients, tolerance=1e-4)


def test_public_names_and_order() -> None:
    assert flash_attn.cute.__all__ == ["flash_attn_func", "flash_attn_varlen_func"]
    dense, varlen = (
        list(inspect.signature(x).parameters) for x in (flash_attn_func, flash_attn_varlen_func)
    )
    assert dense[:9] == [
        "q", "k", "v", "qv", "gather_kv_indices", "softmax_scale", "causal", "window_size",
        "learnable_sink",
    ]  # fmt: skip
    assert varlen[:9] == [
        "q", "k", "v", "qv", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
        "min_seqlen_k",
    ]  # fmt: skip
    assert dense[-1] == "return_lse" and varlen[-1] == "disable_scheduler_metadata"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"causal": True}, {"right": 0}),
        ({"window_size": (3, None)}, {"left": 3}),
        ({"window_size": (3, 2), "causal": True}, {"left": 3, "right": 0}),
        ({"window_size": (-1, -1)}, {}),
        ({"window_size": (-1, -1), "causal": True}, {"right": 0}),
        ({"softcap": 1.5, "window_size": None}, {"softcap": 1.5}),
        ({"softcap": None, "deterministic": True, "num_splits": 3}, {}),
    ],
)
def test_against_the_definition(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    q, k, v, sink = inputs("q", "k", "v", "sink")
    for with_sink in (False, True):
        more, expected = ({"learnable_sink": sink}, {"sink": sink}) if with_sink else ({}, {})
        found = flash_attn_func(q, k, v, return_lse=True, **given, **more)
        graded = [q, k, v, *([sink] if with_sink else [])]
        compare(found, naive(q, k, v, **wanted, **expected), graded)


def test_two_results_always() -> None:
    q, k, v = inputs("q", "k", "v")
    out, lse = flash_attn_func(q, k, v)
    assert lse is None and torch.equal(out, flash_attn_func(q, k, v, return_lse=True)[0])


def test_sinks_in_any_dtype() -> None:
    q, k, v, sink = inputs("q", "k", "v", "sink")
    half = sink.detach().bfloat16().requires_grad_()
    out, lse = flash_attn_func(q, k, v, learnable_sink=half, return_lse=True)
    close((out, lse), naive(q, k, v, sink=half))
    (out.sum() + lse.sum()).backward()
    assert half.grad is not None and half.grad.dtype is torch.bfloat16 and half.grad.any()


def test_rows_without_a_key() -> None:
    """lse is -inf, or the sink; gradients ignore it."""
    q, k, v, sink = inputs("q", "k", "v", "sink")
    used = torch.tensor([SK, 0], dtype=torch.int32)
    out, lse = flash_attn_varlen_func(q, k, v, seqused_k=used, return_lse=True)
    assert (lse[1] == -torch.inf).all() and lse[0].isfinite().all() and not out[1].any()
    (dq,) = torch.autograd.grad(lse.exp().sum(), q)
    assert dq[0].any() and not dq[1].any()
    _, lse = flash_attn_varlen_func(q, k, v, seqused_k=used, learnable_sink=sink, return_lse=True)
    torch.testing.assert_close(lse[1], sink[:, None].expand(H, SQ))
    (dsink,) = torch.autograd.grad(lse[1].sum(), sink)
    torch.testing.assert_close(dsink, torch.full((H,), float(SQ)))


def test_mla() -> None:
    """qv adds its products with v; lse is then (b, sq, h)."""
    q, k, v, qv = inputs("q", "k", "v", "qv")
    out, lse = flash_attn_func(q, k, v, qv, causal=True, return_lse=True)
    assert lse.shape == (B, SQ, H)
    compare((out, lse.transpose(1, 2)), naive(q, k, v, qv, right=0), [q, k, v, qv])
    out, lse = flash_attn_func(None, None, v, qv, return_lse=True)
    compare((out, lse.transpose(1, 2)), naive(None, None, v, qv), [v, qv])
    with pytest.raises(InvalidArgument, match="^k is None; with qv both q and k must be given"):
        flash_attn_func(q, None, v, qv)


def test_varlen_and_pages() -> None:
    q, k, v, sink = inputs("q", "k", "v", "sink")
    lengths_q, lengths_k = [SQ, 2], [SK, 7]
    cu_q, cu_k = (
        torch.tensor([0, n[0], sum(n)], dtype=torch.int32) for n in (lengths_q, lengths_k)
    )
    rows = [torch.cat([x[b, :n] for b, n in enumerate(lengths)]) for x, lengths in (
        (q, lengths_q), (k, lengths_k), (v, lengths_k))]  # fmt: skip
    found = flash_attn_varlen_func(
        *rows,
        None,
        cu_q,
        cu_k,
        torch.tensor(SQ),
        SK,
        causal=True,
        learnable_sink=sink,
        return_lse=True,
    )
    parts = [
        naive(q[b : b + 1, :n], k[b : b + 1, :m], v[b : b + 1, :m], sink=sink, right=0)
        for b, (n, m) in enumerate(zip(lengths_q, lengths_k))
    ]
    expected = torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], -1)
    compare(found, expected, [q, k, v, sink])

    page = 4
    table = torch.tensor([[5, 0, 2], [1, 4, 3]], dtype=torch.int32)
    caches = []
    for x in (k, v):
        cache = torch.zeros(6, page, HK, x.shape[-1])
        padded = torch.nn.functional.pad(x.detach(), (0, 0, 0, 0, 0, 3 * page - SK))
        for b in range(B):
            cache[table[b].long()] = padded[b].view(3, page, HK, -1)
        caches.append(cache)
    used = torch.tensor(lengths_k, dtype=torch.int32)
    given: dict[str, Any] = {"page_table": table, "seqused_k": used, "causal": True}
    with torch.no_grad():
        found = flash_attn_varlen_func(q, *caches, return_lse=True, num_splits=0, **given)
        close(found, naive(q, k, v, right=0, used=lengths_k))
    with pytest.raises(Unsupported, match="^page_table is given, and q requires a gradient"):
        flash_attn_varlen_func(q, *caches, **given)
    with pytest.raises(InvalidArgument, match="^cu_seqlens_k is given with page_table"):
        flash_attn_varlen_func(q, *caches, cu_seqlens_k=cu_k, **given)


def test_compiled() -> None:
    q, k, v, sink = inputs("q", "k", "v", "sink")

    def function(*x: Tensor) -> Any:
        return flash_attn_func(*x[:3], learnable_sink=x[3], causal=True, return_lse=True)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    compare(compiled(q, k, v, sink), naive(q, k, v, sink=sink, right=0), [q, k, v, sink])


def test_private_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without autograd: forward into given tensors, backward with the gradient of lse."""
    q, k, v, sink = inputs("q", "k", "v", "sink")
    given: dict[str, Any] = {"causal": True, "window_size_left": 4, "learnable_sink": sink}
    into = torch.empty(B, SQ, H, DV), torch.empty(B, H, SQ)
    out, lse = interface._flash_attn_fwd(q, k, v, out=into[0], lse=into[1], **given)
    assert out is into[0] and lse is into[1] and not out.requires_grad
    expected = naive(q, k, v, sink=sink, left=4, right=0)
    close((out, lse), expected)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    dk = torch.empty_like(k)
    found = interface._flash_attn_bwd(q, k, v, out, dout, lse, dk=dk, dlse=dlse, **given)
    assert found[1] is dk and len(found) == 4
    wanted = torch.autograd.grad(expected, [q, k, v, sink], [dout.double(), dlse.double()])
    close(found, wanted, 1e-4)
    monkeypatch.setattr(interface, "_FORWARD_RETURNS_TWO", False)
    assert interface._flash_attn_fwd(q.detach(), k.detach(), v.detach())[1:] == (None, None, None)
    with pytest.raises(InvalidArgument, match=r"^out is torch.float32 of shape \(2, 6, 4, 9\)"):
        interface._flash_attn_fwd(q, k, v, out=torch.empty(B, SQ, H, DV + 1))


def test_combine() -> None:
    q, k, v = (x.detach() for x in inputs("q", "k", "v"))
    parts = [
        flash_attn_func(q, k[:, p], v[:, p], return_lse=True) for p in (slice(0, 4), slice(4, SK))
    ]
    outs = torch.stack([out for out, _ in parts])
    lses = torch.stack([lse.transpose(1, 2) for _, lse in parts])
    lses[:, 1, 2] = -torch.inf
    expected = naive(q, k, v)
    out, lse = interface.flash_attn_combine(outs, lses)
    assert lse.shape == (B, SQ, H) and (lse[1, 2] == -torch.inf).all() and not out[1, 2].any()
    close((out[0], lse[0]), (expected[0][0], expected[1][0].T))
    packed, none = interface.flash_attn_combine(
        outs[:, 0], lses[:, 0], out_dtype=torch.bfloat16, return_lse=False
    )
    assert none is None and packed.dtype is torch.bfloat16
    torch.testing.assert_close(packed, out[0].bfloat16())


def test_scheduler_metadata() -> None:
    metadata = interface.get_scheduler_metadata(SQ, SK, H, HK, D, causal=True)
    q, k, v = inputs("q", "k", "v")
    flash_attn_varlen_func(q, k, v, scheduler_metadata=metadata)
    with pytest.raises(
        TypeError, match="^scheduler_metadata has type Tensor; it must be what get_s"
    ):
        flash_attn_varlen_func(q, k, v, scheduler_metadata=torch.zeros(1))


BLOCKS = BlockSparseTensorsTorch(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score_mod", lambda *x: x),
        ("mask_mod", lambda *x: x),
        ("aux_tensors", [torch.zeros(1)]),
        ("block_sparse_tensors", BLOCKS),
        ("gather_kv_indices", torch.zeros(1, dtype=torch.int32)),
    ],
)
def test_unsupported_arguments_are_rejected_by_name(name: str, value: Any) -> None:
    q, k, v = inputs("q", "k", "v")
    for function in (flash_attn_func, flash_attn_varlen_func, interface._flash_attn_fwd):
        with pytest.raises(Unsupported, match=f"^{name} is given; it must be None: .* supported"):
            function(q, k, v, **{name: value})


def test_wrong_arguments_are_rejected_by_name() -> None:
    q, k, v = inputs("q", "k", "v")
    with pytest.raises(
        InvalidArgument, match=r"^window_size is \(-1, 5\); a bound must be 0 or more"
    ):
        flash_attn_func(q, k, v, window_size=(-1, 5))
    with pytest.raises(
        InvalidArgument, match="^learnable_sink has dtype torch.float64; it must be"
    ):
        flash_attn_func(q, k, v, learnable_sink=torch.zeros(H, dtype=torch.float64))
    with pytest.raises(Unsupported, match="^q_descale is given; it must be None: fp8 is not supp"):
        interface._flash_attn_fwd(q, k, v, q_descale=torch.ones(B, HK))


def test_torch_registry() -> None:
    """What torch's `activate_flash_attention_impl("FA4")` calls, which itself needs a GPU."""
    registry = pytest.importorskip("torch.nn.attention._fa4")
    assert registry._fa4_import_module("flash_attn.cute.interface") is interface
    path, registry._FA4_MODULE_PATH = registry._FA4_MODULE_PATH, "flash_attn.cute.interface"
    try:
        q, k, v = inputs("q", "k", "v")
        shape = (None, None, SQ, SK, None, True, -1, -1, None)
        out, lse = registry._fa4_run_forward(q, k, v, *shape)
        expected = naive(q, k, v, right=0)
        close((out, lse), expected)
        dout = torch.randn_like(out)
        found = registry._fa4_run_backward(dout, q, k, v, out, lse, None, None, None, True, -1, -1)
        close(found, torch.autograd.grad(expected[0], [q, k, v], dout.double()), 1e-4)
    finally:
        registry._FA4_MODULE_PATH = path


@pytest.mark.parametrize("kind", ["gpt_oss", "mimo_v2_flash"])
def test_transformers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with sinks infer and train as with eager attention. transformers' gate requires a
    GPU and the distribution's metadata, which the tests of wheels check."""
    import transformers
    from transformers import modeling_flash_attention_utils as utils

    if 4 not in getattr(utils, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}):
        pytest.skip(f"transformers {transformers.__version__} has no flash_attention_4")
    gate = dict(utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[4])
    gate["general_availability_check"] = lambda: True
    monkeypatch.setitem(utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX, 4, gate)
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    common: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "num_experts_per_tok": 1,
        "sliding_window": 5,
    }
    if kind == "gpt_oss":
        config = transformers.GptOssConfig(**common, num_local_experts=2)
    else:
        config = transformers.MiMoV2FlashConfig(
            **common, v_head_dim=8, n_routed_experts=2, moe_intermediate_size=32
        )
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    model = next(x for name, x in vars(module).items() if name.endswith("ForCausalLM"))
    torch.manual_seed(1)
    eager = model._from_config(copy.deepcopy(config), attn_implementation="eager")
    for part, parameter in eager.named_parameters():
        if "sinks" in part:
            torch.nn.init.normal_(parameter)
    ours = model._from_config(copy.deepcopy(config), attn_implementation="flash_attention_4")
    ours.load_state_dict(eager.state_dict())
    calls = []
    for name in ("_flash_fn", "_flash_varlen_fn"):
        function = getattr(utils, name)
        monkeypatch.setattr(utils, name, lambda *x, f=function, **y: calls.append(y) or f(*x, **y))
    ids = torch.randint(1, 97, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    results = []
    for one in (eager, ours):
        logits = one(input_ids=ids, attention_mask=mask).logits
        loss = logits[mask.bool()].float().logsumexp(-1).sum()
        loss.backward()
        sinks = [x.grad for name, x in one.named_parameters() if "sinks" in name]
        queries = [x.grad for name, x in one.named_parameters() if "q_proj.weight" in name]
        results.append([logits[mask.bool()], *sinks, *queries])
    assert len(calls) == 2 and any(x.get("learnable_sink") is not None for x in calls)
    assert len(results[0]) >= 4
    for x, y in zip(*results):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-3)
