"""What a call may be told besides q, k and v: one list, made from the ABI's own struct.

The operators' schema, the tensors' slots in a call and the lists of the array side come from it. Tensors
come first, then numbers, each in the order of the struct; options that are no field of it are added here.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from ctypes import c_float, c_int32, c_int64
from typing import Any, NamedTuple

from ..errors import InvalidArgument
from . import abi


class Option(NamedTuple):
    name: str
    kind: type  # of its value: int, bool or float; object for a tensor
    default: Any  # which means absent
    schema: str  # its type in an operator

    @property
    def is_tensor(self) -> bool:
        return self.kind is object


def _tensor(name: str) -> Option:
    return Option(name, object, None, "Tensor?")


_OF_TYPE: dict[Any, Callable[[str], Option]] = {
    abi.TensorPointer: _tensor,
    abi.Flag: lambda name: Option(name, bool, False, "bool"),
    c_int32: lambda name: Option(name, int, 0, "SymInt"),
    c_int64: lambda name: Option(name, int, 0, "SymInt"),
    c_float: lambda name: Option(name, float, 0.0, "float"),
}
_INPUTS = ("q", "k", "v")
# Fields that are given otherwise than as themselves.
_INSTEAD: dict[str, tuple[Option, ...]] = {
    "struct_size": (),
    "window": tuple(Option(f"window_{side}", int, -1, "SymInt") for side in ("left", "right")),
    "softmax_scale": (Option("softmax_scale", float, None, "float?"),),
    "dropout_seed": (_tensor("rng_state"),),  # both in one
    "dropout_offset": (),
}


def _listed() -> tuple[Option, ...]:
    found: list[Option] = []
    for name, c_type in abi.Problem._fields_:
        if name not in _INPUTS:
            found.extend(_INSTEAD[name] if name in _INSTEAD else (_OF_TYPE[c_type](name),))
    # rng_state last of all tensors: it is the only one that goes as numbers.
    found.sort(key=lambda option: (not option.is_tensor, option.name == "rng_state"))
    execution = (Option(name, int, 0, "int") for name in ("num_threads", "backend"))
    return (*found, *execution)


OPTIONS = _listed()
NAMES = tuple(option.name for option in OPTIONS)
DEFAULTS = tuple(option.default for option in OPTIONS)
TENSORS = sum(option.is_tensor for option in OPTIONS)  # so many come first
TENSOR_OPTIONS, NUMBER_OPTIONS = NAMES[:TENSORS], NAMES[TENSORS:]
SCHEMA = ", ".join(f"{option.schema} {option.name}" for option in OPTIONS)
AT = {name: n for n, name in enumerate(NAMES)}

# Tensors that have gradients besides q, k and v, in the order of the ABI's: dsinks and so on.
GRADED = ("sinks", "bias", "alibi_slopes")
GRADED_AT = tuple(AT[name] for name in GRADED)

# Everything about a problem but q, k and v, by name.
Options = namedtuple("Options", NAMES, defaults=DEFAULTS)  # type: ignore[misc]

# New keys for a cache, and rotary embedding: all tensors of the ABI's struct.
APPENDED = tuple(name for name, c_type in abi.Append._fields_ if c_type is abi.TensorPointer)
Append = namedtuple("Append", APPENDED, defaults=(None,) * len(APPENDED))  # type: ignore[misc]

# What backward starts from besides options.
Saved = namedtuple("Saved", ("dout", "q", "k", "v", "out", "lse"))

# Of all options, the ones that attention over a cache takes.
CACHE_OPTIONS = (
    "cu_seqlens_q", "seqused_k", "leftpad_k", "alibi_slopes", "sinks", "block_table", "cache_batch_idx",
    "max_seqlen_q", "causal", "window_left", "window_right", "attention_chunk", "softmax_scale", "softcap",
    "num_splits", "num_threads", "backend",
)
# What the ABI calls an argument, and what callers of attention over a cache do.
CALLERS_NAMES = {
    "k": "k_cache",
    "v": "v_cache",
    "k_new": "k",
    "v_new": "v",
    "seqused_k": "cache_seqlens",
    "leftpad_k": "cache_leftpad",
    "window": "window_size",
}


def renamed(error: Exception, page_table_name: str) -> Exception:
    """The same refusal, under the name that a caller of attention over a cache knows."""
    name, colon, rest = str(error).partition(":")
    name = page_table_name if name == "block_table" else CALLERS_NAMES.get(name, name)
    return type(error)(name + colon + rest)


def window_pair(window: Any, name: str = "window") -> tuple[int, int]:
    """(left, right) as ints, from a pair of ints or a tensor or array of two."""
    if window is None:
        return -1, -1
    try:
        left, right = window
        whole = int(left), int(right)
        if whole != (left, right):
            raise ValueError("a bound would be rounded")
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{name}: {window!r}; it must be two integers (left, right), -1 for no bound"
        ) from error
    return whole


def packer(*given: str) -> Callable[..., tuple[Any, ...]]:
    """A function that takes the options named, in this order, and returns all of them.

    It is as fast as a tuple that is written down, and nobody has to know the order.
    """
    unknown = [name for name in given if name not in AT]
    if unknown:
        raise KeyError(f"no such options: {unknown}")
    values = (option.name if option.name in given else repr(option.default) for option in OPTIONS)
    source = f"lambda {', '.join(given)}: ({', '.join(values)})"
    return eval(source, {"__name__": __name__})  # type: ignore[no-any-return]
