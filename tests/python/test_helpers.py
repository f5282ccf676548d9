"""flash_attn's helper modules: padding, rotary embedding, norms, losses, blocks of attention."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flash_attn.bert_padding import (
    IndexFirstAxisResidual,
    index_first_axis,
    index_put_first_axis,
    rearrange,
    unpad_input,
    unpad_input_for_concatenated_sequences,
)
from flash_attn.layers.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    apply_rotary_emb_torch,
)
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.modules.mha import MHA, ParallelMHA, get_alibi_slopes
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn
from flash_attn.ops.triton.rotary import apply_rotary


def test_padding() -> None:
    x = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]])
    unused = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]])
    packed, indices, cu, longest, used = unpad_input(x, mask, unused)
    assert indices.tolist() == [0, 1, 2, 4] and cu.tolist() == [0, 3, 4] and longest == 3
    assert used.tolist() == [2, 1] and cu.dtype == torch.int32
    rows = rearrange(x, "b s c -> (b s) c")
    assert torch.equal(packed, index_first_axis(rows, indices))
    back = index_put_first_axis(packed, indices, 8)
    back.sum().backward()
    assert x.grad.flatten(0, 1)[:, 0].tolist() == [1, 1, 1, 0, 1, 0, 0, 0]
    leaf = torch.zeros(3, 2, requires_grad=True)
    taken, residual = IndexFirstAxisResidual.apply(leaf, torch.tensor([2, 0]))
    (10 * taken.sum() + residual.sum()).backward()
    assert leaf.grad[:, 0].tolist() == [11, 1, 11]  # both branches reach it
    arguments = torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]])
    packed, indices, cu, longest = unpad_input_for_concatenated_sequences(x, arguments)
    assert (
        indices.tolist() == [0, 1, 2, 4, 5, 6, 7] and cu.tolist() == [0, 2, 3, 7] and longest == 4
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved: bool) -> None:
    """Offsets, packed rows, in place, the inverse, and gradients, against the baseline formula."""
    x = torch.randn(2, 7, 3, 20, requires_grad=True)
    angles = torch.rand(30, 8) * 6
    cos, sin = angles.cos(), angles.sin()
    out = apply_rotary_emb(x, cos, sin, interleaved)
    torch.testing.assert_close(out, apply_rotary_emb_torch(x, cos[:7], sin[:7], interleaved))
    offsets = torch.tensor([3, 11])
    shifted = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
    for n, first in enumerate(offsets.tolist()):
        right = apply_rotary_emb_torch(
            x[n : n + 1], cos[first : first + 7], sin[first : first + 7], interleaved
        )
        torch.testing.assert_close(shifted[n : n + 1], right)
    packed = apply_rotary_emb(
        x.flatten(0, 1), cos, sin, interleaved, cu_seqlens=torch.tensor([0, 7, 14]), max_seqlen=7
    )
    torch.testing.assert_close(packed.unflatten(0, (2, 7)), out)
    back = apply_rotary(out, cos, sin, interleaved=interleaved, conjugate=True)
    torch.testing.assert_close(back, x)
    dout = torch.randn_like(out)
    (dx,) = torch.autograd.grad(out, x, dout)
    torch.testing.assert_close(
        dx, apply_rotary(dout, cos, sin, interleaved=interleaved, conjugate=True)
    )
    own = x.detach().clone()
    assert apply_rotary(own, cos, sin, interleaved=interleaved, inplace=True) is own
    torch.testing.assert_close(own, out)
    with pytest.raises(ValueError, match="^cos has 30 positions; it must have"):
        apply_rotary(x, cos, sin, seqlen_offsets=25)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rotary_is_one_call(
    dtype: torch.dtype, interleaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's vision models and ModernBERT: views, in place, tables of either dtype. The bits are
    the formula's.
    """
    from rocflash._torch import calls, rotary

    count = []
    real = calls.rotate
    monkeypatch.setattr(calls, "rotate", lambda *x: count.append(1) or real(*x))
    angles = torch.rand(40, 20) * 6
    qkv = torch.randn(2, 33, 3, 5, 48).to(dtype)
    x = qkv[:, :, 1]
    for tables in (dtype, torch.float32):
        cos, sin = angles.cos().to(tables), angles.sin().to(tables)
        for conjugate in (False, True):
            arguments = {"interleaved": interleaved, "conjugate": conjugate}
            expected = rotary.formula(x, cos[:33], sin[:33], **arguments)
            assert torch.equal(apply_rotary(x, cos, sin, **arguments), expected)
            own = qkv.clone()
            assert (
                apply_rotary(own[:, :, 1], cos, sin, inplace=True, **arguments).data_ptr()
                == own[:, :, 1].data_ptr()
            )
            assert torch.equal(own[:, :, 1], expected)
            assert torch.equal(own[:, :, ::2], qkv[:, :, ::2])
    # Packed, where the last rows belong to no sequence; int64 lengths and offsets as some pass
    # them.
    cu, offsets = torch.tensor([0, 30, 30, 64]), torch.tensor([3, 0, 6])
    rows = qkv[:, :, 0].flatten(0, 1).clone()
    before = rows.clone()
    arguments = {"cu_seqlens": cu, "max_seqlen": 34, "interleaved": interleaved}
    apply_rotary(rows, cos, sin, seqlen_offsets=offsets, inplace=True, **arguments)
    for first, begin, end in ((3, 0, 30), (6, 30, 64)):
        at = slice(first, first + end - begin)
        assert torch.equal(
            rows[begin:end], rotary.formula(before[begin:end], cos[at], sin[at], interleaved)
        )
    assert torch.equal(rows[64:], before[64:])
    shifted = apply_rotary(before[:64], cos, sin, seqlen_offsets=2, **arguments)
    assert torch.equal(
        shifted[30:64], rotary.formula(before[30:64], cos[2:36], sin[2:36], interleaved)
    )
    assert len(count) == 10
    # A mode gets torch's operators, and the same numbers.
    compiled = torch.compile(apply_rotary, backend="aot_eager")
    torch.testing.assert_close(
        compiled(x, cos, sin, interleaved=interleaved),
        apply_rotary(x, cos, sin, interleaved=interleaved),
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("form", ["x", "view", "packed", "qkv", "grouped qkv", "kv"])
def test_rotary_in_place_on_leaves(form: str, interleaved: bool) -> None:
    """As upstream's: a leaf that requires a gradient is written to, and the result has the
    gradient.
    """
    angles = torch.rand(9, 6) * 6
    tables = (angles.cos(), angles.sin())
    qkv, grouped = torch.randn(2, 7, 3, 4, 16), torch.randn(2, 7, 4 + 2 * 2, 16)
    cu = torch.tensor([0, 7, 14]).int()
    where: Any = ...  # what is rotated
    leaf, call = qkv[:, :, 0].clone(), lambda x: apply_rotary_emb(x, *tables, interleaved, True)
    if form == "view":
        leaf, where = qkv.clone(), (slice(None), slice(None), 1)
        call = lambda x: apply_rotary_emb(x[where], *tables, interleaved, True)  # noqa: E731
    elif form == "packed":
        leaf = leaf.flatten(0, 1)
        call = lambda x: apply_rotary_emb(  # noqa: E731
            x, *tables, interleaved, True, cu_seqlens=cu, max_seqlen=7
        )
    elif form == "qkv":
        leaf, where = qkv.clone(), (slice(None), slice(None), slice(2))
        call = lambda x: apply_rotary_emb_qkv_(x, *tables, interleaved=interleaved)  # noqa: E731
    elif form == "grouped qkv":
        leaf, where = grouped.clone(), (slice(None), slice(None), slice(6))
        call = lambda x: apply_rotary_emb_qkv_(  # noqa: E731
            x, *tables, interleaved=interleaved, num_heads_q=4
        )
    elif form == "kv":
        leaf, where = qkv[:, :, :2].clone(), (slice(None), slice(None), 0)
        call = lambda x: apply_rotary_emb_kv_(x, *tables, interleaved)  # noqa: E731
    before = leaf.clone()
    x = leaf.requires_grad_()
    out = call(x)
    assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    own = before.clone()
    with torch.no_grad():
        right = call(own)
    assert torch.equal(out, right) and torch.equal(x, own)
    dout = torch.randn_like(out)
    given = dout.clone()
    out.backward(given)
    assert torch.equal(given, dout)
    # The rotation is orthogonal: <out, dout> is <x, dx>, and what is not rotated keeps its
    # gradient.
    assert x.grad is not None
    torch.testing.assert_close((before * x.grad).sum(), (right * dout).sum())
    rest = torch.ones_like(before, dtype=torch.bool)
    rest[where][..., :12] = False
    full = (
        dout
        if form != "view"
        else torch.zeros_like(before).index_copy(2, torch.tensor([1]), dout[:, :, None])
    )
    assert torch.equal(x.grad[rest], full[rest])
    assert not torch.equal(x.grad, full)


def test_an_earlier_use_of_a_rotated_leaf_is_noticed() -> None:
    angles = torch.rand(7, 8)
    x = torch.randn(2, 7, 3, 16, requires_grad=True)
    squares = x.square().sum()
    apply_rotary_emb(x, angles.cos(), angles.sin(), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()


def test_upstreams_triton_kernel_is_absent() -> None:
    with pytest.raises(ImportError, match="^rotary_kernel is upstream's Triton kernel"):
        from flash_attn.ops.triton.rotary import rotary_kernel  # noqa: F401


def test_rotary_rejects() -> None:
    x, table = torch.randn(2, 7, 3, 16), torch.randn(9, 8)
    packed, cu = x.flatten(0, 1), torch.tensor([0, 7, 14]).int()
    for call, arguments, words in (
        (x, {"seqlen_offsets": 3}, "^cos has 9 positions; it must have those used, 3 to 9"),
        (
            x,
            {"seqlen_offsets": torch.tensor([0, 3])},
            "^cos has 9 positions; sequence 1 requires 10",
        ),
        (x, {"seqlen_offsets": torch.tensor([-1, 0])}, "^first is -1 for sequence 0"),
        (x, {"seqlen_offsets": torch.tensor([1])}, "^seqlen_offsets has shape"),
        (packed, {"cu_seqlens": cu}, "^max_seqlen is None; with cu_seqlens it must be given"),
        (packed, {"cu_seqlens": cu, "max_seqlen": 6}, "^max_seqlen is 6; it must be at least 7"),
        (
            packed,
            {"cu_seqlens": cu + 1, "max_seqlen": 7},
            "^cu_seqlens ends with 15; it must be at most 14",
        ),
        (packed, {}, "^x has shape"),
        (x, {"cu_seqlens": cu, "max_seqlen": 7}, "^x has shape"),
    ):
        with pytest.raises(ValueError, match=words):
            apply_rotary(call, table, table, **arguments)
    with pytest.raises(ValueError, match="^sin has shape"):
        apply_rotary(x, table, table[:, :4])


def test_rotary_packed_tensors_and_module() -> None:
    qkv = torch.randn(2, 7, 3, 4, 16)
    angles = torch.rand(9, 4)
    arguments = (angles.cos(), angles.sin())
    found = apply_rotary_emb_qkv_(qkv.clone(), *arguments)
    torch.testing.assert_close(found[:, :, 1], apply_rotary_emb(qkv[:, :, 1], *arguments))
    assert torch.equal(found[:, :, 2], qkv[:, :, 2])
    grouped = torch.randn(2, 7, 4 + 2 * 2, 16)
    rotated = apply_rotary_emb_qkv_(grouped.clone(), *arguments, num_heads_q=4)
    torch.testing.assert_close(rotated[:, :, 4:6], apply_rotary_emb(grouped[:, :, 4:6], *arguments))
    assert torch.equal(rotated[:, :, 6:], grouped[:, :, 6:])
    kv = torch.randn(2, 7, 2, 4, 16)
    assert torch.equal(apply_rotary_emb_kv_(kv.clone(), *arguments)[:, :, 1], kv[:, :, 1])
    module = RotaryEmbedding(8)
    q, kv_out = module(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone(), seqlen_offset=2)
    whole = module(qkv.clone(), seqlen_offset=2)
    torch.testing.assert_close(torch.cat((q[:, :, None], kv_out), 2), whole)
    scaled = RotaryEmbedding(8, scale_base=512.0)(qkv.clone())
    baseline = RotaryEmbedding(8)(qkv.clone())
    score = torch.einsum("bthd,bshd->bhts", scaled[:, :, 0], scaled[:, :, 1])
    unscaled = torch.einsum("bthd,bshd->bhts", baseline[:, :, 0], baseline[:, :, 1])
    torch.testing.assert_close(score.diagonal(0, 2, 3), unscaled.diagonal(0, 2, 3))


def test_norms() -> None:
    x, residual = torch.randn(5, 3, 16), torch.randn(5, 3, 16)
    weight, bias = torch.randn(16), torch.randn(16)
    out, total = layer_norm_fn(x, weight, bias, residual=residual, eps=1e-5, prenorm=True)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out, F.layer_norm(x + residual, (16,), weight, bias, 1e-5))
    y, y1 = rms_norm_fn(x, weight, None, x1=residual, weight1=bias, zero_centered_weight=True)
    right = F.rms_norm(x + residual, (16,), weight + 1, 1e-6)
    torch.testing.assert_close(y, right)
    torch.testing.assert_close(y1, F.rms_norm(x + residual, (16,), bias + 1, 1e-6))
    dropped, mask, mask1 = rms_norm_fn(x, weight, None, dropout_p=0.5, return_dropout_mask=True)
    torch.testing.assert_close(dropped, F.rms_norm(x * mask * 2, (16,), weight, 1e-6))
    assert mask1 is None and 0.3 < mask.float().mean() < 0.7
    scale = torch.rand(5, 3)
    torch.testing.assert_close(
        rms_norm_fn(x, weight, bias, rowscale=scale, eps=1.0),
        F.rms_norm(x * scale[..., None], (16,), weight, 1.0) + bias,
    )
    assert rms_norm_fn(x, weight, None, out_dtype=torch.bfloat16).dtype == torch.bfloat16
    assert RMSNorm(16)(x).shape == x.shape


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    logits = torch.randn(9, 31, requires_grad=True)
    labels = torch.randint(0, 31, (9,))
    labels[4] = -100
    loss = CrossEntropyLoss(label_smoothing=smoothing)(logits, labels)
    right = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(loss, right)
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits)[0], torch.autograd.grad(right, logits)[0]
    )
    losses, z = cross_entropy_loss(logits, labels, logit_scale=2.0, lse_square_scale=0.01)
    lse = (logits * 2).logsumexp(-1)
    expected = F.cross_entropy(logits * 2, labels, reduction="none")
    squares = (0.01 * lse.square()).masked_fill(labels == -100, 0)
    torch.testing.assert_close(losses, expected + squares)
    torch.testing.assert_close(z, squares)
    (dz,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(dz, torch.autograd.grad((expected + squares).sum(), logits)[0])
    own = logits.detach().clone().requires_grad_()
    kept = own * 1.0
    cross_entropy_loss(kept, labels, inplace_backward=True)[0].sum().backward()
    torch.testing.assert_close(kept.detach(), own.grad)


@pytest.mark.parametrize("inplace", [True, False])
def test_cross_entropy_makes_no_copy_of_the_logits(
    inplace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl and OpenRLHF: logits of all tokens and classes would be twice as large in f32."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from flash_attn.ops.triton import cross_entropy

    largest = {}

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                largest[found.dtype] = max(largest.get(found.dtype, 0), found.numel())
            return found

    monkeypatch.setattr(cross_entropy, "_BLOCK", 256)
    own = torch.randn(37, 64, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 64, (37,))
    labels[5] = -100
    logits = own * 1.0
    with Sizes():
        cross_entropy_loss(logits, labels, inplace_backward=inplace)[0].sum().backward()
    assert largest[torch.float32] <= 256
    exact = own.detach().double().requires_grad_()
    F.cross_entropy(exact, labels, reduction="sum").backward()
    torch.testing.assert_close(own.grad.double(), exact.grad, rtol=0.01, atol=1e-3)
    assert torch.equal(logits.detach(), own.grad if inplace else own.detach())


def test_alibi_slopes() -> None:
    assert get_alibi_slopes(8) == [2.0 ** -(i + 1) for i in range(8)]
    assert len(get_alibi_slopes(12)) == 12 and len(set(get_alibi_slopes(12))) == 12


@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_block_generation_equals_forward(heads_kv: int, flash: bool) -> None:
    """A block gives equal results step by step over a cache, and with checkpointing."""
    arguments = {"causal": True, "rotary_emb_dim": 16, "layer_idx": 0, "use_flash_attn": flash}
    block = MHA(64, 4, num_heads_kv=heads_kv, **arguments)
    x = torch.randn(2, 9, 64)
    whole = block(x)
    params = SimpleNamespace(
        max_seqlen=16, max_batch_size=2, seqlen_offset=0, batch_size_offset=0,
        key_value_memory_dict={}, lengths_per_sample=None,
    )  # fmt: skip
    parts = []
    with torch.no_grad():
        for begin, end in ((0, 5), (5, 6), (6, 9)):
            params.seqlen_offset = begin
            parts.append(block(x[:, begin:end], inference_params=params))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    block.checkpointing = True
    torch.testing.assert_close(block(x), whole)


def test_block_packed_and_padded() -> None:
    x = torch.randn(2, 9, 64)
    mask = torch.arange(9)[None] < torch.tensor([[9], [4]])
    baseline = MHA(64, 4, dwconv=False)
    flash = MHA(64, 4, use_flash_attn=True)
    flash.load_state_dict(baseline.state_dict())
    padded = baseline(x, key_padding_mask=mask)
    packed, indices, cu, longest, _ = unpad_input(x, mask)
    found = flash(packed, cu_seqlens=cu, max_seqlen=longest)
    torch.testing.assert_close(found, padded.flatten(0, 1)[indices], rtol=1e-4, atol=1e-5)
    cross = MHA(64, 4, cross_attn=True, return_residual=True, dwconv=True)
    out, residual = cross(x, x_kv=torch.randn(2, 5, 64))
    assert out.shape == x.shape and residual.shape == (2, 5, 64)
    assert baseline(x, mixer_subset=slice(0, 1)).shape == (2, 1, 64)
    with pytest.raises(ValueError, match="^key_padding_mask"):
        flash(x, key_padding_mask=mask)


def _one_of_two(rank: int, port: int, state: dict, x: torch.Tensor, expected, results) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    group = torch.distributed.group.WORLD
    block = ParallelMHA(64, 4, group, causal=True, use_flash_attn=True, sequence_parallel=rank >= 0)
    q, k, v = state["Wqkv.weight"].chunk(3)
    own = slice(rank * 32, rank * 32 + 32)
    with torch.no_grad():
        block.Wqkv.weight.copy_(torch.cat((q[own], k[own], v[own])))
        qb, kb, vb = state["Wqkv.bias"].chunk(3)
        block.Wqkv.bias.copy_(torch.cat((qb[own], kb[own], vb[own])))
        block.out_proj.weight.copy_(state["out_proj.weight"][:, own])
        if rank == 0:
            block.out_proj.bias.copy_(state["out_proj.bias"])
    rows = x.flatten(0, 1).chunk(2)[rank].clone().requires_grad_()
    out = block(rows, seqlen=9)
    out.square().sum().backward()
    wanted_out, wanted_grad = (t.flatten(0, 1).chunk(2)[rank] for t in expected)
    close = torch.allclose(out, wanted_out, rtol=1e-4, atol=1e-5)
    results[rank] = close and torch.allclose(rows.grad, wanted_grad, rtol=1e-3, atol=1e-5)
    torch.distributed.destroy_process_group()


def test_parallel_block() -> None:
    """Two processes, each with half of the heads and rows, give the results of one."""
    whole = MHA(64, 4, causal=True, use_flash_attn=True)
    x = torch.randn(2, 9, 64, requires_grad=True)
    out = whole(x)
    out.square().sum().backward()
    state = {k: v.detach() for k, v in whole.state_dict().items()}
    context = torch.multiprocessing.get_context("spawn")
    results = context.Manager().dict()
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (port, state, x.detach(), (out.detach(), x.grad), results)
    workers = [context.Process(target=_one_of_two, args=(n, *arguments)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert dict(results) == {0: True, 1: True}
