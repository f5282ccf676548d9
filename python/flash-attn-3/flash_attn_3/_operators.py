"""torch.ops.flash_attn_3: fwd, bwd, fwd_combine and get_scheduler_metadata, with upstream's
schemas.

Upstream's extension registers them on load; servers, exported models and torch's FA3 registry call
them by these names. In their schemas results alias arguments, which torch's compiler rejects for
opaque operators. Therefore they are composite: they decompose into operators without aliasing.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from flash_attn_3 import _raw
from rocflash.dropin import define

_SCHEMAS = {
    "fwd": "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None"
    ", Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None"
    ", Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None"
    ", Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None"
    ", Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None"
    ", Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None"
    ", Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None"
    ", float? softmax_scale=None, bool is_causal=False, int window_size_left=-1"
    ", int window_size_right=-1, int attention_chunk=0, float softcap=0.0"
    ", bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0"
    ", bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)",
    "bwd": "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse"
    ", Tensor(dq!)? dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None"
    ", Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? seqused_q=None"
    ", Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None"
    ", float? softmax_scale=None, bool is_causal=False, int window_size_left=-1"
    ", int window_size_right=-1, float softcap=0.0, bool deterministic=False, int sm_margin=0)"
    " -> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)",
    "fwd_combine": "(Tensor out_partial, Tensor lse_partial, Tensor(out!)? out=None"
    ", ScalarType? out_dtype=None) -> (Tensor(out!), Tensor)",
    "get_scheduler_metadata": "(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads"
    ", int num_heads_k, int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k"
    ", Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None"
    ", Tensor? seqused_q=None, Tensor? leftpad_k=None, int? page_size=None"
    ", int max_seqlen_k_new=0, bool is_causal=False, int window_size_left=-1"
    ", int window_size_right=-1, int attention_chunk=0, bool has_softcap=False"
    ", int num_splits=0, bool? pack_gqa=None, int sm_margin=0) -> Tensor",
}
_RAW_CALLS = {
    "fwd": _raw.forward,
    "bwd": _raw.backward,
    "get_scheduler_metadata": _raw.scheduler_metadata,
}


_ARGUMENTS = {
    name: torch._C.parse_schema(f"flash_attn_3::{name}{schema}").arguments
    for name, schema in _SCHEMAS.items()
}
_NAMES = {name: [x.name for x in arguments] for name, arguments in _ARGUMENTS.items()}
_DEFAULTS = {
    name: tuple(x.default_value for x in arguments) for name, arguments in _ARGUMENTS.items()
}


def named(operator: str, *arguments: Any, **given: Any) -> _raw.RawCall:
    """All arguments of an operator, by the names of its schema."""
    call = {**dict(zip(_NAMES[operator], arguments)), **given}
    if call.keys() != set(_NAMES[operator]):
        raise KeyError(f"{operator} has other arguments: {call.keys() ^ set(_NAMES[operator])}")
    return call


def _kernel(name: str) -> Any:
    if name == "fwd_combine":
        return _raw.combine
    raw, defaults = _RAW_CALLS[name], _DEFAULTS[name]

    def kernel(*arguments: Any) -> Any:
        # torch omits trailing arguments with default values.
        return raw(named(name, *arguments, *defaults[len(arguments) :]))

    return kernel


def _registered_by(name: str) -> str:
    """Where an existing operator was registered, as torch records it."""
    for line in torch._C._dispatch_dump(f"flash_attn_3::{name}").splitlines():
        if line.startswith("debug: registered at "):
            return line[len("debug: registered at ") :]
    return "another package"


def _register() -> str:
    """The implementation of the operators: "rocflash", or the location of another package's.

    All four belong to one package, since the metadata of one is invalid for the fwd of another.
    """
    taken = [name for name in _SCHEMAS if hasattr(torch.ops.flash_attn_3, name)]
    if taken:
        other = _registered_by(taken[0])
        if other.rpartition(":")[0] == __file__:  # this module was imported a second time
            return "rocflash"
        warnings.warn(
            f"torch.ops.flash_attn_3.{taken[0]} is registered already, by {other}, which goes on "
            "serving torch.ops.flash_attn_3; the functions of flash_attn_interface use rocflash",
            stacklevel=2,
        )
        return other
    for name, schema in _SCHEMAS.items():
        define(_library, name + schema)
        _library.impl(name, _kernel(name), "CompositeImplicitAutograd")
    return "rocflash"


# A fragment, so that other packages can add operators to the namespace.
_library = torch.library.Library("flash_attn_3", "FRAGMENT")
served_by = _register()
