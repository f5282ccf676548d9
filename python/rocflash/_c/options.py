"""The options of a call besides q, k and v: one list, derived from the ABI's struct.

It defines the operators' schema, the tensors' slots in a call and the lists for arrays. Tensors
come first, then numbers, each in the order of the struct, with additional options that are not in
it.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterable
from ctypes import c_float, c_int32, c_int64
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidArgument
from . import abi

if TYPE_CHECKING:
    from typing_extensions import Self


class Option(NamedTuple):
    name: str
    kind: type  # int, bool or float; object for a tensor
    default: Any  # means absent
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
# Fields that have other arguments.
_INSTEAD: dict[str, tuple[Option, ...]] = {
    "struct_size": (),
    "window": tuple(Option(f"window_{side}", int, -1, "SymInt") for side in ("left", "right")),
    "softmax_scale": (Option("softmax_scale", float, None, "float?"),),
    "dropout_seed": (_tensor("rng_state"),),  # both in one
    "dropout_offset": (),
}


def _listed() -> tuple[Option, ...]:
    found: list[Option] = []
    for name, c_type, *_ in abi.Problem._fields_:
        if name not in _INPUTS:
            found.extend(_INSTEAD[name] if name in _INSTEAD else (_OF_TYPE[c_type](name),))
    # rng_state is the last tensor: it is passed as numbers.
    found.sort(key=lambda option: (not option.is_tensor, option.name == "rng_state"))
    execution = (Option(name, int, 0, "int") for name in ("num_threads", "backend"))
    return (*found, *execution)


OPTIONS = _listed()
NAMES = tuple(option.name for option in OPTIONS)
DEFAULTS = tuple(option.default for option in OPTIONS)
TENSORS = sum(option.is_tensor for option in OPTIONS)  # these come first
TENSOR_OPTIONS, NUMBER_OPTIONS = NAMES[:TENSORS], NAMES[TENSORS:]
SCHEMA = ", ".join(f"{option.schema} {option.name}" for option in OPTIONS)
AT = {name: n for n, name in enumerate(NAMES)}

# Tensors with gradients besides q, k and v, in the order of the ABI: dsinks and so on.
GRADED = ("sinks", "bias", "alibi_slopes")
GRADED_AT = tuple(AT[name] for name in GRADED)

# All options of a problem besides q, k and v, by name.
if TYPE_CHECKING:
    # The fields come from the ABI's struct, which type checkers do not read.
    class _Fields(tuple[Any, ...]):
        _fields: tuple[str, ...]

        def __new__(cls, *values: Any, **named: Any) -> Self: ...
        def __getattr__(self, name: str) -> Any: ...
        def _replace(self, **named: Any) -> Self: ...
        def _asdict(self) -> dict[str, Any]: ...
        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self: ...

    class Options(_Fields): ...

    class Append(_Fields): ...

else:
    Options = namedtuple("Options", NAMES, defaults=DEFAULTS)

# Append and rotary embedding: all tensors of the ABI's struct.
APPENDED = tuple(name for name, c_type, *_ in abi.Append._fields_ if c_type is abi.TensorPointer)
if not TYPE_CHECKING:
    Append = namedtuple("Append", APPENDED, defaults=(None,) * len(APPENDED))

# The inputs of backward besides options; dlse is the gradient of lse.
Saved = namedtuple("Saved", ("dout", "q", "k", "v", "out", "lse", "dlse"), defaults=(None,))


# The cache call, attention over a KV cache with append: its arguments besides q and the caches by
# their names for callers, and their defaults. `page_table_name` is the page table's name in
# messages.
class CacheCall(NamedTuple):
    k: Any = None
    v: Any = None
    qv: Any = None
    rotary_cos: Any = None
    rotary_sin: Any = None
    rotary_seqlens: Any = None
    cache_seqlens: Any = None
    cache_batch_idx: Any = None
    cache_leftpad: Any = None
    page_table: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k_new: Any = None
    rotary_interleaved: bool = True
    page_table_name: str = "page_table"
    k_descale: Any = None
    v_descale: Any = None
    max_seqlen_q: int = 0
    causal: bool = False
    softmax_scale: Any = None
    window: Any = None
    attention_chunk: int = 0
    softcap: float = 0.0
    alibi_slopes: Any = None
    sinks: Any = None
    num_splits: int = 0
    num_threads: int = 0
    out: Any = None
    want_lse: bool = True


# Argument names of the ABI and of callers of attention over a KV cache.
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
    """The same error, with the argument name that callers of attention over a KV cache use."""
    match = re.match(r"\w+", str(error))
    if match is None:
        return error
    name = page_table_name if match[0] == "block_table" else CALLERS_NAMES.get(match[0], match[0])
    return type(error)(name + str(error)[match.end() :])


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
            f"{name} is {window!r}; it must be two integers (left, right), -1 for no bound"
        ) from error
    return whole


def _packer() -> Callable[..., tuple[Any, ...]]:
    parameters = ", ".join(f"{option.name}={option.default!r}" for option in OPTIONS)
    source = f"lambda *, {parameters}: ({', '.join(NAMES)})"
    return eval(source, {"__name__": __name__})


# All options in the order of `Options`, from keywords. It is as fast as a tuple display.
packed = _packer()


def appended(call: Any) -> tuple[Any, ...]:
    """A cache call's arguments in the order of APPENDED, checked as far as no array library is
    needed.
    """
    found = tuple(getattr(call, CALLERS_NAMES.get(name, name)) for name in APPENDED)
    if call.k is not None and call.cache_seqlens is None:
        raise InvalidArgument(
            "cache_seqlens is None, but k is given; it must give the positions of k"
        )
    if call.k is None and call.rotary_cos is not None:
        raise InvalidArgument(
            "rotary_cos is given, but k is None; it must be None, since it rotates appended keys"
        )
    return found


def cache_options(call: Any, seqused_k: Any, backend: int) -> tuple[Any, ...]:
    """A cache call's options in the order of `Options`."""
    left, right = (-1, -1) if call.window is None else window_pair(call.window, "window_size")
    return packed(
        cu_seqlens_q=call.cu_seqlens_q,
        seqused_k=seqused_k,
        leftpad_k=call.cache_leftpad,
        alibi_slopes=call.alibi_slopes,
        sinks=call.sinks,
        block_table=call.page_table,
        cache_batch_idx=call.cache_batch_idx,
        k_descale=call.k_descale,
        v_descale=call.v_descale,
        max_seqlen_q=call.max_seqlen_q,
        causal=call.causal,
        window_left=left,
        window_right=right,
        attention_chunk=call.attention_chunk,
        softmax_scale=call.softmax_scale,
        softcap=call.softcap,
        num_splits=call.num_splits,
        num_threads=call.num_threads,
        backend=backend,
    )
