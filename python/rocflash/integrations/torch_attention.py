"""rocflash as a flash attention implementation of torch: scaled_dot_product_attention and
varlen_attn.

`import rocflash`, then `torch.nn.attention.activate_flash_attention_impl("rocflash")`. Until it is
restored, torch's flash operators call the library, on GPUs and on the CPU.
(scaled_dot_product_attention on the CPU uses a CPU-only operator of torch and is not affected.)
torch has this registry since 2.11.
"""

from __future__ import annotations

import sys
from typing import Any, Optional

NAME = "rocflash"


def register() -> str:
    """Adds rocflash to torch's registry, and returns the name for its activation.

    Importing rocflash does so if torch is imported already; this function is for the other order.
    """
    import torch.nn.attention

    if not offer():
        import torch

        raise ImportError(
            f"torch {torch.__version__} has no torch.nn.attention.register_flash_attention_impl"
        )
    return NAME


def offer() -> bool:
    """register() without imports, if torch has the registry."""
    registry = sys.modules.get("torch.nn.attention._registry")
    function = getattr(registry, "register_flash_attention_impl", None)
    if function is None:
        return False
    function(NAME, register_fn=_activate)
    return True


class _Active:
    """Overrides torch's operators during its lifetime; torch's registry removes it."""

    def __init__(self) -> None:
        import torch

        self.libraries = []
        for key in ("CPU", "CUDA"):
            library = torch.library.Library("aten", "IMPL", key)
            for name, kernel in _KERNELS.items():
                if hasattr(torch.ops.aten, name):
                    library.impl(name, kernel, key)
            self.libraries.append(library)

    def remove(self) -> None:
        for library in self.libraries:
            library._destroy()
        self.libraries = []


def _activate() -> _Active:
    return _Active()


def _check(dropout_p: float, return_debug_mask: bool) -> None:
    from ..errors import Unsupported

    if dropout_p:
        raise Unsupported(f"dropout_p is {dropout_p}; within torch's flash attention it must be 0")
    if return_debug_mask:
        raise Unsupported("return_debug_mask is True; it must be False")


def _options(given: dict[str, Any], **more: Any) -> Any:
    from .._c import choice
    from .._c.options import Options

    left, right = (given.get(f"window_size_{side}") for side in ("left", "right"))
    return Options(
        softmax_scale=given.get("scale"),
        window_left=-1 if left is None else left,
        window_right=-1 if right is None else right,
        backend=choice.current(),
        **more,
    )


def _run(
    q: Any,
    k: Any,
    v: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    is_causal: bool,
    given: dict[str, Any],
    out: Any = None,
) -> tuple[Any, Any]:
    """(out, lse) of q, k, v in flash_attn's layout: (b, s, h, d), or packed (total, h, d)."""
    from .._torch import calls
    from .._torch.decode import attention_with_kvcache

    if given.get("block_table") is not None:
        left, right = (given.get(f"window_size_{side}") for side in ("left", "right"))
        return attention_with_kvcache(
            q,
            k,
            v,
            cu_seqlens_q=cum_seq_q,
            max_seqlen_q=max_q if cum_seq_q is not None else 0,
            cache_seqlens=given.get("seqused_k"),
            page_table=given["block_table"],
            page_table_name="block_table",
            softmax_scale=given.get("scale"),
            causal=is_causal,
            window=(-1 if left is None else left, -1 if right is None else right),
            num_splits=given.get("num_splits") or 0,
            out=out,
            want_lse=True,
        )
    packed = {}
    if cum_seq_q is not None:
        packed = {
            "cu_seqlens_q": cum_seq_q,
            "cu_seqlens_k": cum_seq_k,
            "max_seqlen_q": max_q,
            "max_seqlen_k": max_k,
        }
    options = _options(
        given,
        causal=is_causal,
        seqused_k=given.get("seqused_k"),
        alibi_slopes=given.get("alibi_slopes"),
        num_splits=given.get("num_splits") or 0,
        **packed,
    )
    return calls.forward(q, k, v, options, out=out)[:2]


def _state(like: Any) -> tuple[Any, Any, Any]:
    """rng_state, an unused result and the debug mask, all empty."""
    import torch

    seeds = torch.zeros(2, dtype=torch.uint64, device=like.device)
    return seeds, torch.zeros((), dtype=torch.uint64, device=like.device), like.new_empty(0)


def _flash_forward(
    query: Any,
    key: Any,
    value: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    **given: Any,
) -> tuple[Any, ...]:
    _check(dropout_p, return_debug_mask)
    lengths = (cum_seq_q, cum_seq_k, max_q, max_k)
    out, lse = _run(query, key, value, *lengths, is_causal, given)
    return out, lse, *_state(query)


def _flash_forward_into(
    out: Any,
    query: Any,
    key: Any,
    value: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    **given: Any,
) -> Any:
    _check(dropout_p, return_debug_mask)
    lengths = (cum_seq_q, cum_seq_k, max_q, max_k)
    return _run(query, key, value, *lengths, is_causal, given, out)[1]


def _flash_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,
    unused: Any,
    **given: Any,
) -> tuple[Any, Any, Any]:
    import torch

    from .._torch import calls

    _check(dropout_p, False)
    packed = {}
    if cum_seq_q is not None and cum_seq_q.numel():
        packed = {
            "cu_seqlens_q": cum_seq_q,
            "cu_seqlens_k": cum_seq_k,
            "max_seqlen_q": max_q,
            "max_seqlen_k": max_k,
        }
    options = _options(
        given,
        causal=is_causal,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **packed,
    )
    into = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    calls.backward(grad_out, query, key, value, out, logsumexp, options, into=into)
    return into


def _transposed(*tensors: Any) -> tuple[Any, ...]:
    """(b, h, s, d) as (b, s, h, d), or back."""
    return tuple(x.transpose(1, 2) for x in tensors)


def _sdpa_forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    import torch

    _check(dropout_p, return_debug_mask)
    out = torch.empty_like(query)  # with the query's strides, as in torch
    lengths = (None, None, query.shape[2], key.shape[2])
    q, k, v, by_heads = _transposed(query, key, value, out)
    lse = _run(q, k, v, *lengths, is_causal, {"scale": scale}, by_heads)[1]
    return out, lse, None, None, query.shape[2], key.shape[2], *_state(query)


def _sdpa_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    *rest: Any,
    scale: Optional[float] = None,
) -> tuple[Any, ...]:
    dout, q, k, v, result = _transposed(grad_out, query, key, value, out)
    given = (logsumexp, None, None, *rest[2:])
    return _transposed(*_flash_backward(dout, q, k, v, result, *given, scale=scale))


_KERNELS = {
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_forward_no_dropout_inplace": _flash_forward_into,
    "_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
}
