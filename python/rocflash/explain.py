"""`rocflash.explain`: the GPU kernels that a call selects, and why no others."""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional

from ._arrays.exchange import F32, Array, compact, look_at
from ._c import abi, frames, shapes
from ._c.options import (
    APPENDED,
    GRADED,
    NAMES,
    NUMBER_OPTIONS,
    OPTIONS,
    TENSOR_OPTIONS,
    window_pair,
)
from .attention import is_torch
from .errors import InvalidArgument

OPERATIONS = ("forward", "backward", "decode", "combine", "rotate")
# The options of "rotate", in the order of the C ABI.
_ROTATED_BY = ("rotary_cos", "rotary_sin", "cu_seqlens_q", "rotary_seqlens")
# What the compiler made of a kernel; `rocflash kernels` prints the same figures.
_COMPILED = ("vgpr", "agpr", "sgpr", "lds", "scratch", "waves_per_simd")
_REAL = {option.name for option in OPTIONS if option.kind is float}
# Options with an argument of their own, or that select no kernel.
_EXCLUDED = {"window_left", "window_right", "softmax_scale", "rng_state", "num_threads", "backend"}


@lru_cache(maxsize=1)
def _report() -> dict[str, dict[str, dict[str, Any]]]:
    """The command's report by architecture and kernel; empty where the command is not installed."""
    directories = (Path(__file__).parent, abi.library_path().resolve().parents[1])
    program = next(
        (path for directory in directories if (path := directory / "bin" / "rocflash").exists()),
        None,
    )
    if program is None:
        return {}
    done = subprocess.run([program, "report", "--json", "-"], capture_output=True, check=True)
    return {
        target["arch"]: {kernel["name"]: kernel for kernel in target["kernels"]}
        for target in json.loads(done.stdout)["targets"]
    }


def _look_at(name: str, x: Any) -> Array:
    """The description of an argument. Tensors on the device meta count as tensors on the CPU."""
    if not is_torch(x) or x.device.type != "meta":
        if is_torch(x) and x.requires_grad:
            x = x.detach()
        return look_at(name, x)
    import torch

    from ._torch.plan import describe

    dtype, device, shape, strides = describe(
        name, (x.shape, x.stride(), x.dtype, torch.device("cpu"))
    )
    if dtype[0] == abi.DL_INT:
        raise InvalidArgument(
            f"{name} is on meta; it must be on the CPU or a GPU, since its values are read"
        )
    return Array(dtype, device, shape, strides, 0, False, x)


def _like(view: Array, shape: tuple[int, ...], dtype: Optional[Any] = None) -> Array:
    return Array(dtype or view.dtype, view.device, shape, compact(shape), 0, False, None)


def _word(frame: frames.Frame, view: Optional[Array]) -> Optional[int]:
    """The word of a tensor's description in a frame."""
    if view is None:
        return None
    return frame.describe(view.dtype, view.device, view.shape, view.strides, view.data)


def _explain_combine(x: Any, lse_partial: Any, arch: Optional[str], units: int) -> str:
    partial, lse = _look_at("out_partial", x), _look_at("lse_partial", lse_partial)
    views = (partial, lse, _like(partial, partial.shape[1:]), _like(lse, lse.shape[1:]))
    frame = frames.Frame(len(views))
    return frame.explain_combine(tuple(_word(frame, view) for view in views), arch, units)


def _explain_rotate(q: Any, given: dict[str, Any], arch: Optional[str], units: int) -> str:
    for name in given:
        if name not in (*_ROTATED_BY, "rotary_interleaved"):
            raise InvalidArgument(
                f"{name} is not an option of rotate; it must be one of "
                f"{', '.join(_ROTATED_BY)}, rotary_interleaved"
            )
    x = _look_at("q", q)
    views = [x, *(_look_at(n, given[n]) if n in given else None for n in _ROTATED_BY)]
    frame = frames.Frame(len(views) + 1)
    words = tuple(_word(frame, view) for view in views)
    out = _word(frame, _like(x, x.shape))
    assert out is not None
    interleaved = bool(given.get("rotary_interleaved", True))
    return frame.explain_rotate(words, interleaved, out, arch, units)


class _Problem:
    """The arguments of a call without data: validation and kernel selection read none."""

    def __init__(self, q: Any, k: Any, v: Any) -> None:
        self.q, self.k, self.v = (_look_at(name, x) for name, x in zip("qkv", (q, k, v)))
        self._tensors: list[tuple[Any, str, Array]] = []
        self._numbers: list[tuple[Any, str, Any]] = []
        self._window = (-1, -1)
        self._scale: Optional[float] = None
        for name in "qkv":
            self.add(abi.Problem, name, getattr(self, name))

    def add(self, kind: Any, name: str, view: Array) -> None:
        self._tensors.append((kind, name, view))

    def set_option(self, name: str, value: Any) -> None:
        if name == "window":
            self._window = window_pair(value)
        elif name == "softmax_scale":
            self._scale = float(value)
        elif name in TENSOR_OPTIONS and name not in _EXCLUDED:
            self.add(abi.Problem, name, _look_at(name, value))
        elif name in APPENDED:
            self.add(abi.Append, name, _look_at(name, value))
        elif name == "rotary_interleaved":
            self._numbers.append((abi.Append, name, int(bool(value))))
        elif name in NUMBER_OPTIONS and name not in _EXCLUDED:
            number = float(value) if name in _REAL else int(value)
            self._numbers.append((abi.Problem, name, number))
        else:
            allowed = (
                "window",
                *(n for n in NAMES if n not in _EXCLUDED),
                "softmax_scale",
                *APPENDED,
            )
            raise InvalidArgument(
                f"{name} is not an option of a call; it must be one of {', '.join(allowed)}"
            )

    def add_outputs(self, operation: str, given: dict[str, Any]) -> None:
        out = _like(self.q, shapes.out_shape(self.q.shape, self.v.shape))
        lse = _like(self.q, shapes.lse_shape(self.q.shape), F32)
        if operation != "backward":
            self.add(abi.ForwardOutputs, "out", out)
            self.add(abi.ForwardOutputs, "lse", lse)
            return
        gradients = {"dq": self.q, "dk": self.k, "dv": self.v}
        described = {name: view for _, name, view in self._tensors}
        gradients.update({f"d{name}": described[name] for name in GRADED if name in given})
        inputs = {"dout": out, "out": out, "lse": lse}
        outputs = {name: _like(view, view.shape, view.dtype) for name, view in gradients.items()}
        for name, view in {**inputs, **outputs}.items():
            self.add(abi.BackwardTensors, name, view)

    def explain(self, operation: str, arch: Optional[str], units: int) -> str:
        frame = frames.Frame(len(self._tensors))
        for kind, name, value in self._numbers:
            frame.set(kind, name, value)
        if self._window != (-1, -1):
            frame.set_window(*self._window)
        if self._scale is not None:
            frame.set_scale(self._scale)
        for kind, name, view in self._tensors:
            word = _word(frame, view)
            assert word is not None
            frame.point(frames.word_of(kind, name), word)
        return frame.explain(operation, arch, units)


def _explained(
    q: Any,
    k: Any,
    v: Any,
    operation: str,
    arch: Optional[str],
    units: int,
    given: dict[str, Any],
) -> str:
    if operation == "combine":
        if given:
            raise InvalidArgument(f"{next(iter(given))} is given; combine has no options")
        return _explain_combine(q, k, arch, units)
    if operation == "rotate":
        return _explain_rotate(q, given, arch, units)
    problem = _Problem(q, k, v)
    for name, value in given.items():
        problem.set_option(name, value)
    problem.add_outputs(operation, given)
    return problem.explain(operation, arch, units)


def explain(
    q: Any,
    k: Any = None,
    v: Any = None,
    *,
    operation: str = "forward",
    arch: Optional[str] = None,
    units: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """The GPU kernels that a call selects, in launch order, and why other candidates are rejected.

    q, k, v: as in `attention` and `decode`; torch tensors, also on the device meta, or arrays.
    operation: "forward", "backward" (of the problem with these options), "decode" (also forward
    without gradients), "combine" (q and k are out_partial and lse_partial of split-KV attention,
    without v) or "rotate" (rotary embedding of q alone, without k and v).
    arch: an architecture such as "gfx942" or "sm_90", for which no GPU is needed; by default the
    device of q.
    units: its compute units or multiprocessors; 0: those of its reference card.
    options: those of `attention` by their names; for "decode" also k_new, v_new, cu_seqlens_k_new,
    rotary_cos, rotary_sin, rotary_seqlens and rotary_interleaved; the last four and cu_seqlens_q
    for "rotate".

    Returns a dictionary: arch, family, units, refusal (why no kernel supports the call, or None),
    features, splits, workspace_bytes, launches and rejected. Launches and rejected candidates have
    kernel, its operation and schedule; a rejected one a reason. A launch also has family, grid,
    block, dynamic_lds, cluster, pdl, and vgpr, agpr, sgpr, lds, scratch and waves_per_simd as
    `rocflash kernels` prints them: None for NVIDIA's, which the driver compiles, and where the
    command is not installed.

    >>> q = k = v = torch.empty(1, 4096, 32, 128, dtype=torch.float16, device="meta")
    >>> rocflash.explain(q, k, v, arch="gfx942", causal=True)["launches"][0]["kernel"]
    'forward_f16_128_specialized'
    """
    if operation not in OPERATIONS:
        raise InvalidArgument(
            f"operation is {operation!r}; it must be one of {', '.join(OPERATIONS)}"
        )
    for name, x, used in (("k", k, operation != "rotate"), ("v", v, operation in OPERATIONS[:3])):
        if (x is not None) != used:
            raise InvalidArgument(
                f"{name} is {'None' if used else 'given'}; with operation {operation!r} it must "
                f"be {'given' if used else 'None'}"
            )
    given = {name: value for name, value in options.items() if value is not None}
    found: dict[str, Any] = json.loads(_explained(q, k, v, operation, arch, units, given))
    report = _report()
    kernels = {**report.get(found["arch"], {}), **report.get(f"{found['arch']}a", {})}
    for launch in found["launches"]:
        compiled = kernels.get(launch["kernel"], {})
        launch.update({key: compiled.get(key) for key in _COMPILED})
    return found
