"""The CPU fast path: it gives the results of plans, declines calls that need them, and leaks
nothing.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rocflash
from flash_attn import flash_attn_func, flash_attn_varlen_func
from rocflash._c.options import TENSORS
from rocflash._torch import fast
from rocflash._torch.options import DEFAULT_NUMBERS

served = pytest.mark.skipif(fast._start() is None, reason="this torch has no table of C functions")


@contextmanager
def long_way() -> Iterator[None]:
    bind, fast._bind = fast._bind, None
    try:
        yield
    finally:
        fast._bind = bind


class Taken(list):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Whether the fast path ran, per call that tried it."""
    found = Taken()

    def watch(name: str) -> Callable[..., Any]:
        function = getattr(fast, name)

        def watched(*arguments: Any) -> Any:
            result = function(*arguments)
            found.append(result is not None)
            found.names.append(name)
            return result

        return watched

    for name in ("infer", "forward", "backward"):
        monkeypatch.setattr(fast, name, watch(name))
    return found


def inputs(sq: int = 5, sk: int = 7, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = ((2, sq, 4, 16), (2, sk, 2, 16), (2, sk, 2, 16))
    return [torch.randn(s).to(dtype) for s in shapes]


def test_fast_path_needs_torchs_exchange_table() -> None:
    offered = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert (fast._bind is not None) == (fast._start() is not None) == offered


@served
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": (2, 1), "softcap": 3.0},
        {"softmax_scale": 0.3, "num_threads": 1},
        {"mask": torch.ones(5, 7).tril(2).bool()[None, None]},
        {"seqused_k": torch.tensor([3, 7]).int()},
        {"backend": "reference"},
    ],
    ids=lambda o: ",".join(o) or "no options",
)
def test_results_equal_those_of_a_plan(taken: list, dtype: torch.dtype, options: dict) -> None:
    q, k, v = inputs(dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    dout = torch.randn(q.shape).to(dtype)

    def everything() -> list[torch.Tensor]:
        out = rocflash.attention(*leaves, **options)
        return [
            rocflash.attention(q, k, v, **options),
            out,
            *torch.autograd.grad(out, leaves, dout),
        ]

    found = everything()
    # Gradients are wanted, so by `forward`; then `infer`, then `backward`.
    assert taken == [True, True, True]
    with long_way():
        expected = everything()
    assert len(taken) == 6 and not any(taken[3:])
    for a, b in zip(found, expected):
        assert torch.equal(a, b) and a.dtype is b.dtype
        assert a.shape == b.shape and a.stride() == b.stride()


@served
def test_only_the_requested_gradients(taken: list) -> None:
    q, k, v = inputs()
    dout = torch.randn(q.shape)
    for n in range(3):
        leaves = [x.clone().requires_grad_(m == n) for m, x in enumerate((q, k, v))]
        (found,) = torch.autograd.grad(rocflash.attention(*leaves), leaves[n], dout)
        with long_way():
            (expected,) = torch.autograd.grad(rocflash.attention(*leaves), leaves[n], dout)
        assert torch.equal(found, expected)
    assert taken == 3 * [True, True, False, False]


@served
def test_strides_and_offsets(taken: list) -> None:
    """Results are contiguous, and storage of their own that can be resized, as torch's are."""
    store = torch.randn(3, 4, 9, 16)
    q = store[1:].transpose(1, 2)[:, 2:7]
    _, k, v = inputs()
    out = rocflash.attention(q, k.flip(1), v[:, ::2].expand(2, -1, 2, 16)[:, [0, 1, 2, 3, 0, 1, 2]])
    assert taken == [True] and out.is_contiguous() and out.shape == q.shape
    with long_way():
        right = rocflash.attention(
            q.contiguous(), k.flip(1), v[:, ::2].expand(2, -1, 2, 16)[:, [0, 1, 2, 3, 0, 1, 2]]
        )
    assert torch.equal(out, right)
    assert out.storage_offset() == 0 and out.untyped_storage().resizable()
    out.untyped_storage().resize_(0)


@served
@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q, k, v[..., :8]),  # out is not shaped like q
        lambda q, k, v: (q, k.transpose(1, 3).contiguous().transpose(1, 3), v),  # is copied
        lambda q, k, v: (q, torch._neg_view(-k), v),
    ],
    ids=["value size", "last stride", "negative"],
)
def test_unsupported_calls_use_plans(taken: list, change: Callable[..., Any]) -> None:
    arguments = change(*inputs())
    found = rocflash.attention(*arguments)
    assert taken == [False]
    assert torch.equal(found, rocflash.attention(*(x.contiguous().clone() for x in arguments)))


@served
def test_dropout_uses_plans(taken: list) -> None:
    """And later calls are unaffected."""
    q, k, v = inputs()
    dropout = {"dropout_p": 0.5, "rng_state": torch.tensor([1, 2])}
    for options in ({}, dropout, {}, {"dropout_p": 0.5}, {}):
        rocflash.attention(q, k, v, **options)
    assert taken == [True, False, True, False, True]


@served
def test_calls_with_large_workspaces_use_plans(taken: list) -> None:
    leaves = [torch.randn(1, 512, 16, 128, requires_grad=True) for _ in "qkv"]
    found = torch.autograd.grad(rocflash.attention(*leaves).sum(), leaves)
    assert taken[-1] is False
    with long_way():
        expected = torch.autograd.grad(rocflash.attention(*leaves).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


class Recorded(torch.Tensor):
    pass


@served
def test_modes_intercept_the_operators(taken: Taken) -> None:
    q, k, v = inputs()
    recorded = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            recorded.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watching():
        rocflash.attention(q, k, v)
    assert "rocflash.forward.default" in recorded
    assert taken == [True] and taken.names == ["forward"]  # inside of the operator
    expected = rocflash.attention(q, k, v)
    assert taken[-1] and taken.names[-1] == "infer"
    taken.names.clear()
    out = rocflash.attention(q.as_subclass(Recorded), k, v)
    assert type(out) is Recorded and torch.equal(out.as_subclass(torch.Tensor), expected)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(rocflash.attention)(q[None], k[None], v[None])
    (dq,) = torch.func.vjp(lambda x: rocflash.attention(x, k, v), q)[1](torch.ones_like(q))
    q.requires_grad_()
    assert torch.equal(dq, torch.autograd.grad(rocflash.attention(q, k, v).sum(), q)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rocflash.attention(q.detach(), k, v).dtype is torch.bfloat16
    assert "infer" not in taken.names


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traces_contain_the_operator() -> None:
    """Not the memory that a result was written to while tracing."""
    traced = torch.jit.trace(rocflash.attention, inputs())
    assert "rocflash::forward" in str(traced.graph)
    q, k, v = inputs()
    assert torch.equal(traced(q, k, v), rocflash.attention(q, k, v, return_lse=True)[0])


@served
def test_function_modes_do_not_affect_results(taken: list) -> None:
    class Passing(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    q, k, v = inputs()
    expected = rocflash.attention(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    for mode in (Passing(), torch.device("meta")):
        with mode:
            found = rocflash.attention(q, k, v)
            differentiable = rocflash.attention(*leaves)
        assert found.device.type == "cpu" and torch.equal(found, expected)
        assert differentiable.device.type == "cpu" and differentiable.requires_grad
    assert taken == [True] * 5


@served
def test_gradient_modes(taken: list) -> None:
    leaves = [x.requires_grad_() for x in inputs()]
    with torch.no_grad():
        assert not rocflash.attention(*leaves).requires_grad
    with torch.inference_mode():
        assert rocflash.attention(*leaves).is_inference()
    assert taken == [True, True]
    out = rocflash.attention(*leaves)
    assert out.requires_grad and not out.is_leaf
    with pytest.raises(rocflash.Unsupported, match="gradients of attention's gradients"):
        (first,) = torch.autograd.grad(out.sum(), leaves[0], create_graph=True)
        first.sum().backward()
    out = rocflash.attention(*leaves)
    with torch.no_grad():
        leaves[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@served
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda q, k, v: ((q, k.half(), v), {}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q, k[:, :, :, :8], v), {}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q[0], k, v), {}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q.long(), k, v), {}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q, k.to_sparse(), v), {}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q, k.to("meta"), v), {}), rocflash.Unsupported),
        (lambda q, k, v: ((q, [1.0], v), {}), TypeError),
        (lambda q, k, v: ((q, None, v), {}), TypeError),
        (lambda q, k, v: ((q, k, v), {"mask": "all"}), TypeError),
        (lambda q, k, v: ((q, k, v), {"num_splits": True}), TypeError),
        (lambda q, k, v: ((q, k, v), {"num_splits": -3}), rocflash.InvalidArgument),
        (lambda q, k, v: ((q, k, v), {"softcap": [1.0]}), TypeError),
        (lambda q, k, v: ((q, k, v), {"seqused_k": torch.tensor([1, 8]).int()}), ValueError),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 2.0}), ValueError),
    ],
)
def test_errors_equal_those_of_a_plan(change: Callable[..., Any], error: type) -> None:
    arguments, options = change(*inputs())
    for grad in (False, True):
        if grad:
            arguments = (arguments[0].detach(), *arguments[1:])
            if not arguments[0].dtype.is_floating_point:
                continue
            arguments[0].requires_grad_()
        with pytest.raises(error) as found:
            rocflash.attention(*arguments, **options)
        with long_way(), pytest.raises(error) as expected:
            rocflash.attention(*arguments, **options)
        assert str(found.value) == str(expected.value)
        assert type(found.value) is type(expected.value)


@served
def test_number_types_are_distinguished() -> None:
    """By value and type, whether the object is known or not."""
    q, k, v = inputs()

    def right(**options: Any) -> torch.Tensor:
        with long_way():
            return rocflash.attention(q, k, v, **options)

    scales = [0.25, float("0.25"), 0.5, float("0.5"), 1, 1.0, 0.25]
    for scale in scales:
        for window in ((1000, 1000), (2, 0), (int("1000"), 1000)):
            for causal in (False, True, 1, 0):
                options = {"softmax_scale": scale, "window": window, "causal": causal}
                assert torch.equal(rocflash.attention(q, k, v, **options), right(**options))
    known = fast._prepared.cache_info().currsize
    for n in range(50):
        rocflash.attention(q, k, v, softmax_scale=float(f"{2 + n % 2}.5"))
    assert fast._prepared.cache_info().currsize <= known + 2
    for right_one, wrong in ((1, True), (0, False), (1, 1.0), (0, 0.0)):
        rocflash.attention(q, k, v, num_splits=right_one)
        with pytest.raises(TypeError, match=f"^num_splits is {wrong}"):
            rocflash.attention(q, k, v, num_splits=wrong)
    with pytest.raises(TypeError, match="^softcap is False"):
        rocflash.attention(q, k, v, softcap=False)


@served
def test_a_number_with_a_failing_class() -> None:
    class Odd:
        @property
        def __class__(self) -> type:
            raise KeyError("no class")

    q, k, v = inputs()
    rocflash.attention(q, k, v)
    for _ in range(2):
        with pytest.raises(KeyError, match="no class"):
            rocflash.attention(q, k, v, softcap=Odd())


@served
def test_torchs_number_of_threads_is_used() -> None:
    q, k, v = inputs()
    fast._prepared.cache_clear()
    fast._latest.clear()
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3, 1):
            torch.set_num_threads(n)
            rocflash.attention(q, k, v)
            assert fast._latest["infer"][0] == n
        assert fast._prepared.cache_info()[:2] == (1, 3)  # hits, misses
    finally:
        torch.set_num_threads(before)


def memory() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@served
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_no_references_are_leaked() -> None:
    """Neither references nor memory leak from completed, declined or rejected calls."""
    q, k, v = inputs()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    sparse, wrong, cut = k.to_sparse(), k.half(), v[..., :8]
    held = (q, k, v, sparse, wrong, cut, None, True, False)

    def refused(*arguments: Any) -> None:
        with pytest.raises(rocflash.InvalidArgument):
            rocflash.attention(*arguments)

    def some(count: int) -> None:
        for n in range(count):
            rocflash.attention(q, k, v, softmax_scale=float(f"0.{1 + n % 3}"))
            rocflash.attention(q, k, cut)
            out = rocflash.attention(*leaves)
            torch.autograd.grad(out, leaves, q)
            if n % 20 == 0:
                refused(q, sparse, v)
                refused(q, wrong, v)

    some(300)
    gc.collect()
    counts, before = [sys.getrefcount(x) for x in held], memory()
    some(6000)
    gc.collect()
    after = [sys.getrefcount(x) for x in held]
    assert after[:6] == counts[:6]
    # Other code holds a few references too.
    assert all(abs(a - b) < 200 for a, b in zip(after[6:], counts[6:]))
    # A tensor of each call would be 15 MB, an object of 100 bytes 2 MB.
    assert memory() - before < 1 << 20


@served
def test_results_outlive_their_inputs() -> None:
    """Inputs go right after the call, and so does a function that is no longer the latest."""
    expected = []
    found = []
    for n in range(600):  # more kinds than are kept
        q, k, v = inputs()
        found.append(rocflash.attention(q, k, v, softcap=1.0 + n))
        with long_way():
            expected.append(rocflash.attention(q, k, v, softcap=1.0 + n))
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


@served
def test_threads_with_different_options() -> None:
    work = [
        (inputs(60, 90), {"causal": n % 2 == 0, "softmax_scale": float(f"0.{1 + n % 5}")})
        for n in range(24)
    ]
    with long_way():
        expected = [rocflash.attention(*x, **options) for x, options in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            found = list(pool.map(lambda x: rocflash.attention(*x[0], **x[1]), work))
            assert all(torch.equal(a, b) for a, b in zip(found, expected))


@served
def test_other_threads_run_during_a_call(taken: list) -> None:
    q, k, v = (torch.randn(1, 768, 4, 64) for _ in "qkv")  # a quarter of a second
    spans: list[float] = []

    def call() -> None:
        begin = time.perf_counter()
        rocflash.attention(q, k, v, backend="reference")
        spans.append(time.perf_counter() - begin)

    thread = threading.Thread(target=call)
    longest, begin = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, begin = max(longest, now - begin), now
        time.sleep(0.001)
    assert taken == [True]
    assert longest < spans[0] / 2, (longest, spans)


@served
def test_drop_ins_use_the_fast_path(taken: list) -> None:
    q, k, v = inputs()
    flash_attn_func(q, k, v, causal=True)
    cu_q, cu_k = torch.tensor([0, 5, 10]).int(), torch.tensor([0, 7, 14]).int()
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out = flash_attn_varlen_func(*packed, cu_q, cu_k, 5, 7)
    assert taken == [True, True]
    with long_way():
        assert torch.equal(out, flash_attn_varlen_func(*packed, cu_q, cu_k, 5, 7))


@served
def test_the_c_function_declines_unsupported_calls() -> None:
    q, k, v = inputs()
    out = torch.empty_like(q)
    _, function, numbers = fast._prepared("infer", 1, *DEFAULT_NUMBERS)
    options = (None,) * TENSORS + numbers
    assert function(q, k, v, options, out, None, None) is True
    assert function(q, k, v, options, out, None) is False
    assert function() is False
    causal = (None,) * TENSORS + numbers[:2] + (True,) + numbers[3:]
    assert function(q, k, v, causal, out, None, None) is None
    sinks = [None] * TENSORS
    sinks[8] = torch.zeros(4)
    assert function(q, k, v, (*sinks, *numbers), out, None, None) is False
    assert function(q, k, v, options, out[:, 1:], None, None) is False
    with pytest.raises(IndexError):
        function(q, k, v, (), out, None, None)
    with pytest.raises(SystemError):
        function(q, k, v, None, out, None, None)
    with pytest.raises(RuntimeError):
        function(q, k, 3, options, out, None, None)
