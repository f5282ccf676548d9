"""The calls of real software, copied from it: docs/guides/clients.md lists the packages.

Each is a function of `Inputs`, which makes the same random tensors on any device, and returns what
the client uses of the results. test_client_calls.py runs them on the CPU, test_gpu_clients.py on a
GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import flash_attn_2_cuda
import flash_attn_interface as fa3
from flash_attn import (
    flash_attn_func,
    flash_attn_interface,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_with_kvcache,
)


class Inputs:
    """The n-th tensor is the same on every device; floats are rounded to bf16 first, so that f32
    and f64 see the same numbers.
    """

    def __init__(self, device: Any, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.generator = device, dtype, torch.Generator().manual_seed(7)

    def __call__(self, *shape: int, dtype: Any = None) -> torch.Tensor:
        found = torch.randn(shape, generator=self.generator).bfloat16()
        return found.to(dtype or self.dtype).to(self.device)

    def ints(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def qkv(self, *rows: int) -> list[torch.Tensor]:
        return [self(*rows, heads, 64) for heads in (4, 2, 2)]

    def pages(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self(6, 16, 2, 64), self(6, 16, 2, 64)


CU = [0, 9, 40]
CALLS: dict[str, Callable[[Inputs], list[torch.Tensor]]] = {}
# The number of results before the gradients, of calls with gradients.
BEFORE_GRADIENTS = {
    "diffusers_context_parallel": 3,
    "transformer_engine": 2,
    "ring_flash_attention": 2,
    "yunchang_fa3": 2,
    "a_training_step": 1,
    "deep_speed": 2,
}


def client(function: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    CALLS[function.__name__] = function
    return function


@client
def transformers_packed(make: Inputs) -> list[torch.Tensor]:
    """Flattened batches; sinks by the name in the signature."""
    assert "s_aux" in inspect.signature(flash_attn_varlen_func).parameters
    q, k, v = make.qkv(40)
    cu = make.ints(CU)
    return [
        flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=31, max_seqlen_k=31,
            causal=True,
            softmax_scale=0.125, dropout_p=0.0, window_size=(6, 6), deterministic=False,
            s_aux=make(4),
        )
    ]  # fmt: skip


@client
def transformers_continuous_batching(make: Inputs) -> list[torch.Tensor]:
    """Decoding appends to pages; tables are padded with -1."""
    q, k, v = make.qkv(2, 1)
    keys, values = make.pages()
    out = flash_attn_with_kvcache(
        q=q, k_cache=keys, v_cache=values, k=k, v=v, cache_seqlens=make.ints([17, 5]),
        softmax_scale=0.125,
        causal=True, window_size=(-1, 0), block_table=make.ints([[3, 1], [0, -1]]),
    )  # fmt: skip
    return [out, keys, values]


@client
def diffusers_flash(make: Inputs) -> list[torch.Tensor]:
    q, k, v = make.qkv(2, 33)
    out, lse, *_ = flash_attn_func(
        q=q,
        k=k,
        v=v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        return_attn_probs=True,
    )
    return [out, lse]


@client
def diffusers_context_parallel(make: Inputs) -> list[torch.Tensor]:
    """lse with a dropout of 1e-30, and backward with the state of forward."""
    forward, backward = (
        getattr(flash_attn_interface, f"_wrapped_flash_attn_{way}")
        for way in ("forward", "backward")
    )
    q, k, v = make.qkv(2, 33)
    out, lse, s_dmask, state = forward(q, k, v, 1e-30, 0.125, False, -1, -1, 0.0, None, True)
    assert state.device == q.device and s_dmask.dtype == q.dtype
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    backward(
        out, q, k, v, out, lse, dq, dk, dv, 1e-30, 0.125, False, -1, -1, 0.0, None, False, state
    )
    return [out, lse, s_dmask, dq, dk, dv]


@client
def vllm_vision(make: Inputs) -> list[torch.Tensor]:
    q, k, v = (make(40, 4, 72) for _ in range(3))
    cu = make.ints(CU)
    return [
        flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=31, max_seqlen_k=31,
            dropout_p=0.0,
            causal=False, softmax_scale=72**-0.5,
        )
    ]  # fmt: skip


@client
def vllm_mla_prefill(make: Inputs) -> list[torch.Tensor]:
    """Values padded to the head dimension of the keys; lse (heads, total)."""
    q, k, v = (make(40, 4, 192) for _ in range(3))
    cu = make.ints(CU)
    out, lse, _ = flash_attn_varlen_func(
        q=q, k=k, v=v, softmax_scale=192**-0.5, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=31,
        max_seqlen_k=31, causal=True, return_attn_probs=True,
    )  # fmt: skip
    assert lse.shape == (4, 40)
    return [out, lse]


@client
def vllm_decoder(make: Inputs) -> list[torch.Tensor]:
    """Its own build's keywords, over views of (blocks, heads, rows, key and value)."""
    cache = make(6, 2, 16, 128).transpose(1, 2)
    q, out = make(5, 4, 64), make(5, 4, 64)
    ones = torch.ones(2, 2, device=make.device)
    fa3.flash_attn_varlen_func(
        q=q, k=cache[..., :64], v=cache[..., 64:], out=out, cu_seqlens_q=make.ints([0, 3, 5]),
        max_seqlen_q=3,
        seqused_k=make.ints([20, 7]), max_seqlen_k=32, softmax_scale=0.125, causal=True,
        alibi_slopes=None,
        window_size=[-1, -1], block_table=make.ints([[3, 1], [0, 5]]), softcap=0.0,
        scheduler_metadata=torch.zeros(8, dtype=torch.int32, device=make.device), fa_version=3,
        q_descale=ones,
        k_descale=ones, v_descale=ones, dynamic_causal=None, num_splits=0, s_aux=make(4),
        mask_mod=None, aux_tensors=None,
    )  # fmt: skip
    return [out]


@client
def sglang_decode(make: Inputs) -> list[torch.Tensor]:
    """The keys are in the cache already, but their number is passed as that of new keys."""
    keys, values = make.pages()
    out = make(2, 4, 64)
    fa3.flash_attn_with_kvcache(
        q=make(2, 4, 64), k_cache=keys, v_cache=values, page_table=make.ints([[3, 1], [0, 5]]),
        cache_seqlens=make.ints([20, 7]), cu_seqlens_q=make.ints([0, 1, 2]),
        cu_seqlens_k_new=make.ints([0, 20, 27]),
        max_seqlen_q=1, softmax_scale=0.125, causal=True, window_size=(-1, -1), softcap=0.0,
        return_softmax_lse=False, num_splits=0, attention_chunk=None, only_qv=False, sinks=make(4),
        out=out,
    )  # fmt: skip
    return [out]


@client
def text_generation_inference(make: Inputs) -> list[torch.Tensor]:
    """The raw module with 21 positional arguments."""
    q, k, v = make.qkv(40)
    cu, out = make.ints(CU), torch.empty_like(q)
    found = flash_attn_2_cuda.varlen_fwd(
        q,
        k,
        v,
        out,
        cu,
        cu,
        None,
        None,
        None,
        None,
        31,
        31,
        0.0,
        0.125,
        False,
        True,
        -1,
        0,
        0.0,
        False,
        None,
    )
    assert found[0].data_ptr() == out.data_ptr()
    return [out]


@client
def transformer_engine(make: Inputs) -> list[torch.Tensor]:
    """Context parallelism: outputs 0, 1 and 3 of the private functions, then backward by
    position.
    """
    private = flash_attn_interface
    q, k, v = make.qkv(40)
    cu = make.ints(CU)
    call_options = {
        "causal": True,
        "softmax_scale": 0.125,
        "dropout_p": 0.0,
        "alibi_slopes": None,
        "softcap": 0.0,
    }
    sides = {"window_size_left": -1, "window_size_right": -1}
    found = private._flash_attn_varlen_forward(
        q, k, v, cu, cu, 31, 31, return_softmax=False, block_table=None, **call_options, **sides
    )
    out, lse, state = found[0], found[1], found[3]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    private._flash_attn_varlen_backward(
        out,
        q,
        k,
        v,
        out,
        lse,
        dq,
        dk,
        dv,
        cu,
        cu,
        31,
        31,
        deterministic=True,
        rng_state=state,
        **call_options,
        **sides,
    )
    return [out, lse, dq, dk, dv]


@client
def megatron_static_decode(make: Inputs) -> list[torch.Tensor]:
    """Append with rotary embedding."""
    q, k, v = make.qkv(2, 1)
    keys, values = make(2, 24, 2, 64), make(2, 24, 2, 64)
    angles = make(24, 16, dtype=torch.float32)
    out = flash_attn_with_kvcache(
        q=q, k_cache=keys, v_cache=values, k=k, v=v, rotary_cos=angles.cos().to(make.dtype),
        rotary_sin=angles.sin().to(make.dtype), cache_seqlens=make.ints([11, 20]),
        rotary_interleaved=False,
    )  # fmt: skip
    return [out, keys, values]


@client
def ring_flash_attention(make: Inputs) -> list[torch.Tensor]:
    """Arguments by inspection; backward with an lse of another block, into slices of its own
    buffers.
    """
    private = flash_attn_interface

    def call(function: Any, **given: Any) -> Any:
        spec = inspect.getfullargspec(function)
        defaults = dict(
            zip(spec.args[len(spec.args) - len(spec.defaults or ()) :], spec.defaults or ())
        )
        return function(**{**defaults, **given})

    q, k, v = make.qkv(2, 32)
    call_options = {
        "dropout_p": 0.0,
        "softmax_scale": 0.125,
        "causal": False,
        "softcap": 0.0,
        "alibi_slopes": None,
    }
    sides = {"window_size_left": -1, "window_size_right": -1}
    out, lse, _, _ = call(
        private._flash_attn_forward, q=q, k=k, v=v, return_softmax=False, **call_options, **sides
    )
    buffers = [torch.zeros_like(torch.cat((x, x), 1)) for x in (q, k, v)]
    dq, dk, dv = (x[:, 16:48] for x in buffers)
    call(
        private._flash_attn_backward, dout=out, q=q, k=k, v=v, out=out * 0.5, softmax_lse=lse + 0.5,
        dq=dq, dk=dk,
        dv=dv, deterministic=False, **call_options, **sides,
    )  # fmt: skip
    return [out, lse, *buffers]


@client
def yunchang_fa3(make: Inputs) -> list[torch.Tensor]:
    q, k, v = make.qkv(2, 32)
    out, lse, *_ = fa3._flash_attn_forward(
        q=q, k=k, v=v, out=None, softmax_scale=0.125, causal=True, window_size=(-1, -1)
    )
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    fa3._flash_attn_backward(
        out,
        q,
        k,
        v,
        out,
        lse,
        None,
        None,
        None,
        None,
        None,
        None,
        dq,
        dk,
        dv,
        0.125,
        causal=True,
        window_size=(-1, -1),
    )
    return [out, lse, dq, dk, dv]


@client
def open_fold(make: Inputs) -> list[torch.Tensor]:
    q, kv, cu = make(40, 4, 64), make(40, 2, 4, 64), make.ints(CU)
    return [
        flash_attn_varlen_kvpacked_func(q, kv, cu, cu, 31, 31, dropout_p=0.0, softmax_scale=1.0)
    ]


@client
def comfy_ui(make: Inputs) -> list[torch.Tensor]:
    """Views of (b, h, s, d)."""
    q, k, v = (make(2, 4, 33, 64).transpose(1, 2) for _ in range(3))
    return [flash_attn_func(q, k, v, dropout_p=0.0, causal=False)]


@client
def a_training_step(make: Inputs) -> list[torch.Tensor]:
    """axolotl, unsloth, verl: the public function, with a softcap and a window."""
    q, k, v = (x.requires_grad_() for x in make.qkv(2, 33))
    out = flash_attn_func(q, k, v, causal=True, window_size=(12, 0), softcap=20.0)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), make(2, 33, 4, 64))]


@client
def fla_moba(make: Inputs) -> list[torch.Tensor]:
    """Keys and values as views of one tensor, every row a sequence of its own block."""
    q, kv, cu = make(40, 4, 64), make(40, 2, 4, 64), make.ints(CU)
    out, lse, *_ = flash_attn_interface._flash_attn_varlen_forward(
        q=q, k=kv[:, 0], v=kv[:, 1], cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=31,
        max_seqlen_k=31,
        softmax_scale=0.125, causal=True, dropout_p=0.0,
    )  # fmt: skip
    return [out, lse]


@client
def megatron_paged(make: Inputs) -> list[torch.Tensor]:
    """Dynamic batching: decode and prefill over pages; sinks are corrected by the lse of either."""
    keys, values = make.pages()
    table, lengths = make.ints([[3, 1], [0, 4]]), make.ints([17, 5])
    out, lse = flash_attn_with_kvcache(
        q=make(2, 1, 4, 64), k_cache=keys, v_cache=values, cache_seqlens=lengths,
        softmax_scale=0.125, causal=True,
        window_size=(-1, -1), block_table=table, num_splits=0, return_softmax_lse=True,
    )  # fmt: skip
    cu_q, cu_k = make.ints([0, 7, 9]), make.ints([0, 17, 22])
    prompt, prompt_lse, _ = flash_attn_varlen_func(
        make(9, 4, 64), keys, values, cu_q, cu_k, 7, 17, softmax_scale=0.125, causal=True,
        window_size=(-1, -1),
        block_table=table, return_attn_probs=True,
    )  # fmt: skip
    return [out, lse, prompt, prompt_lse]


@client
def transformer_engine_inference(make: Inputs) -> list[torch.Tensor]:
    """Caches that are not paged go as one page per sequence; the dense call has dropout by
    position.
    """
    keys, values = make(2, 24, 2, 64), make(2, 24, 2, 64)
    cu_q, cu_k = make.ints([0, 3, 4]), make.ints([0, 20, 31])
    call_options = {
        "softmax_scale": 0.125,
        "causal": True,
        "window_size": (-1, 0),
        "alibi_slopes": None,
        "deterministic": False,
    }
    out = flash_attn_varlen_func(
        make(4, 4, 64),
        keys,
        values,
        cu_q,
        cu_k,
        3,
        20,
        0.0,
        block_table=make.ints([[0], [1]]),
        **call_options,
    )
    q, k, v = make.qkv(2, 33)
    return [out, flash_attn_func(q, k, v, 0.0, **call_options)]


@client
def deep_speed(make: Inputs) -> list[torch.Tensor]:
    """FPDT: probability and scale by position, the rest by keyword; the state is passed on."""
    q, k, v = make.qkv(2, 33)
    sides = {"window_size_left": -1, "window_size_right": -1, "softcap": 0.0, "alibi_slopes": None}
    out, lse, _, state = flash_attn_interface._flash_attn_forward(
        q, k, v, 0.0, 0.125, causal=False, return_softmax=False, **sides
    )
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    flash_attn_interface._flash_attn_backward(
        out,
        q,
        k,
        v,
        out,
        lse,
        dq,
        dk,
        dv,
        0.0,
        0.125,
        causal=False,
        deterministic=False,
        rng_state=state,
        **sides,
    )
    return [out, lse, dq, dk, dv]


@client
def sglang_fallback(make: Inputs) -> list[torch.Tensor]:
    """Without FA3: lengths by position, three results."""
    q, k, v = make.qkv(40)
    cu = make.ints(CU)
    out, lse, _ = flash_attn_varlen_func(
        q, k, v, cu, cu, 31, 31, softmax_scale=0.125, causal=True, window_size=(-1, -1),
        softcap=0.0,
        return_attn_probs=True,
    )  # fmt: skip
    return [out, lse]


@client
def llm_foundry(make: Inputs) -> list[torch.Tensor]:
    q, k, v = make.qkv(40)
    cu, slopes = make.ints(CU), torch.tensor([0.5, 0.25, 0.125, 0.0625], device=make.device)
    return [
        flash_attn_varlen_func(
            q=q, k=k, v=v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=31, max_seqlen_k=31,
            dropout_p=0.0,
            softmax_scale=0.125, causal=True, return_attn_probs=False, alibi_slopes=slopes,
            window_size=(9, -1),
        )
    ]  # fmt: skip


@client
def esm_c(make: Inputs) -> list[torch.Tensor]:
    """Unpadded rows, in-place rotary embedding, then attention of packed qkv."""
    from flash_attn import flash_attn_varlen_qkvpacked_func
    from flash_attn.bert_padding import pad_input, unpad_input
    from flash_attn.layers.rotary import apply_rotary

    mask = torch.arange(31, device=make.device)[None] < torch.tensor(
        [[9], [31]], device=make.device
    )
    rows, indices, cu, longest, *_ = unpad_input(make(2, 31, 3 * 4 * 64), mask)
    qkv, angles = rows.view(-1, 3, 4, 64), make(31, 32, dtype=torch.float32)
    rotated = qkv[:, :2].reshape(-1, 8, 64)
    tables = angles.cos().to(make.dtype), angles.sin().to(make.dtype)
    apply_rotary(rotated, *tables, cu_seqlens=cu, max_seqlen=longest, inplace=True)
    qkv = torch.cat([rotated.view(-1, 2, 4, 64), qkv[:, 2:]], dim=1)
    out = flash_attn_varlen_qkvpacked_func(qkv, cu, longest, softmax_scale=64**-0.5)
    return [pad_input(out, indices, 2, 31)]


@client
def text_embeddings_inference(make: Inputs) -> list[torch.Tensor]:
    """The 16 arguments of 2.3."""
    q, k, v = make.qkv(40)
    cu, out = make.ints(CU), torch.empty_like(q)
    flash_attn_2_cuda.varlen_fwd(
        q, k, v, out, cu, cu, 31, 31, 0.0, 0.125, False, False, -1, -1, False, None
    )
    return [out]
