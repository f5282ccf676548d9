"""Plans, which are prepared once and repeated: no stale results, no missing errors, no leaked
tensors.
"""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import rocflash
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from rocflash._c import frames, handles, workspace
from rocflash._c.options import TENSORS, Options
from rocflash._torch import fast, plan


def forget() -> None:
    plan._latest.clear()
    plan._plan.cache_clear()
    plan._numbers.cache_clear()
    fast._prepared.cache_clear()
    fast._latest.clear()


@pytest.fixture(autouse=True, params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is prepared. Calls without tensor options take the fast path of fast.py, or, like
    others, plans.
    """
    forget()
    if request.param == "long":
        monkeypatch.setattr(fast, "_bind", None)


@pytest.fixture
def only_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_bind", None)


def inputs(sq: int = 9, sk: int = 11, d: int = 16, dtype: torch.dtype = torch.float32) -> list:
    shapes = ((2, sq, 4, d), (2, sk, 2, d), (2, sk, 2, d))
    return [torch.randn(s).to(dtype) for s in shapes]


def fresh(*arguments: Any, **options: Any) -> Any:
    """The result of a call without a cached plan."""
    forget()
    bind, fast._bind = fast._bind, None
    try:
        return rocflash.attention(*arguments, **options)
    finally:
        fast._bind = bind


def compact(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


@pytest.mark.usefixtures("only_plans")
def test_repeated_calls_are_prepared_once() -> None:
    for _ in range(5):
        rocflash.attention(*inputs())
    assert plan._plan.cache_info()[:2] == (0, 1)  # hits, misses: no second lookup
    rocflash.attention(*inputs(5))
    rocflash.attention(*inputs())
    assert plan._plan.cache_info()[:2] == (1, 2)


@pytest.mark.usefixtures("only_plans")
def test_the_number_of_plans_is_bounded() -> None:
    most = plan._plan.cache_info().maxsize
    for n in range(1, most + 20):
        rocflash.attention(*inputs(1, n, 8), softcap=float(n))
    assert plan._plan.cache_info().currsize == most
    assert plan._numbers.cache_info().currsize <= most


VARIANTS: dict[str, Any] = {
    "same": lambda q, k, v: ((q, k, v), {}),
    "values": lambda q, k, v: ((q + 1, k * 2, v - 1), {}),
    "shape": lambda q, k, v: ((q[:, :5], k[:, :7], v[:, :7]), {}),
    "strides": lambda q, k, v: (
        (q.transpose(1, 2).contiguous().transpose(1, 2), k.flip(1), v),
        {},
    ),
    "last stride": lambda q, k, v: ((q, k.transpose(1, 3).contiguous().transpose(1, 3), v), {}),
    "other last stride": lambda q, k, v: (
        (q, 3 * k.transpose(1, 3).contiguous().transpose(1, 3), v),
        {},
    ),
    "dtype": lambda q, k, v: ((q.half(), k.half(), v.half()), {}),
    "value size": lambda q, k, v: ((q, k, v[..., :8]), {}),
    "causal": lambda q, k, v: ((q, k, v), {"causal": True}),
    "causal by 1": lambda q, k, v: ((q, k, v), {"causal": 1}),
    "window": lambda q, k, v: ((q, k, v), {"window": (2, 1)}),
    "other window": lambda q, k, v: ((q, k, v), {"window": (1, 2)}),
    "scale": lambda q, k, v: ((q, k, v), {"softmax_scale": 1}),
    "softcap": lambda q, k, v: ((q, k, v), {"softcap": 1.5}),
    "mask": lambda q, k, v: ((q, k, v), {"mask": torch.ones(9, 11).tril(2).bool()[None, None]}),
    "bias": lambda q, k, v: ((q, k, v), {"bias": torch.ones(9, 11).tril(2)[None, None]}),
    "sinks": lambda q, k, v: ((q, k, v), {"sinks": torch.arange(4.0)}),
    "lengths": lambda q, k, v: ((q, k, v), {"seqused_k": torch.tensor([3, 11]).int()}),
    "other lengths": lambda q, k, v: ((q, k, v), {"seqused_k": torch.tensor([11, 1]).int()}),
    "dropout": lambda q, k, v: ((q, k, v), {"dropout_p": 0.5, "rng_state": torch.tensor([1, 2])}),
    "other seed": lambda q, k, v: (
        (q, k, v),
        {"dropout_p": 0.5, "rng_state": torch.tensor([3, 2])},
    ),
    "threads": lambda q, k, v: ((q, k, v), {"num_threads": 1}),
    "reference": lambda q, k, v: ((q, k, v), {"backend": "reference"}),
}


@pytest.mark.parametrize("asked", [{}, {"return_lse": True}, {"return_weights": True}], ids=str)
def test_every_change_creates_a_new_plan(asked: dict) -> None:
    """Calls one after the other, twice over, are as if each were the first of the process, on
    compact tensors.
    """
    calls = [make(*inputs()) for make in VARIANTS.values()]
    expected = [fresh(*map(compact, x), **options, **asked) for x, options in calls]
    for _ in range(2):
        for name, (arguments, options), right in zip(VARIANTS, calls, expected):
            found = rocflash.attention(*arguments, **options, **asked)
            assert all(torch.equal(a, b) for a, b in zip(found, right)), name
            assert type(found) is type(right), name


def test_gradients_of_every_change() -> None:
    for _ in range(2):
        for name, make in VARIANTS.items():
            arguments, options = make(*inputs())
            leaves = [x.detach().requires_grad_() for x in arguments]
            out = rocflash.attention(*leaves, **options)
            dout = torch.randn(out.shape).to(out.dtype)
            found = torch.autograd.grad(out, leaves, dout)
            copies = [compact(x).requires_grad_() for x in leaves]
            right = torch.autograd.grad(fresh(*copies, **options), copies, dout)
            assert all(torch.equal(a, b) for a, b in zip(found, right)), name


def test_dout_of_any_strides() -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    dout = torch.randn(2, 9, 4, 16)
    expected = torch.autograd.grad(rocflash.attention(q, k, v), (q, k, v), dout)
    for again in (dout.transpose(1, 3).contiguous().transpose(1, 3), dout, dout.flip(0).flip(0)):
        found = torch.autograd.grad(rocflash.attention(q, k, v), (q, k, v), again)
        assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize(
    ("right", "wrong", "text"),
    [
        ({"causal": True}, {"causal": 1.0}, r"^causal is 1.0 \(float\)"),
        ({"num_splits": 1}, {"num_splits": True}, r"^num_splits is True \(bool\)"),
        ({"num_splits": 1}, {"num_splits": 1.0}, r"^num_splits is 1.0 \(float\)"),
        ({"softcap": 1.0}, {"softcap": True}, r"^softcap is True \(bool\)"),
        ({"softcap": 1.0}, {"softcap": torch.tensor(1.0)}, "^softcap is tensor"),
        ({"softmax_scale": 1.0}, {"softmax_scale": [1.0]}, r"^softmax_scale is \[1.0\] \(list\)"),
        ({"deterministic": False}, {"deterministic": 0.0}, "^deterministic is 0.0"),
    ],
)
def test_equal_numbers_of_another_type_are_rejected(right: dict, wrong: dict, text: str) -> None:
    arguments = inputs()
    rocflash.attention(*arguments, **right)
    for _ in range(2):
        with pytest.raises(TypeError, match=text):
            rocflash.attention(*arguments, **wrong)
    rocflash.attention(*arguments, **right)


def test_numbers_out_of_range_are_rejected() -> None:
    for name, value in (("attention_chunk", 2**70), ("num_splits", 2**31)):
        for arguments in (inputs(), [x.numpy() for x in inputs()]):
            with pytest.raises(rocflash.InvalidArgument, match=f"^{name} is .* must fit into"):
                rocflash.attention(*arguments, **{name: value})


def test_values_are_checked_in_every_call() -> None:
    """A valid call does not hide errors of the next one, and an invalid call does not affect it."""
    q, k, v = inputs()
    good, bad = torch.tensor([3, 11]).int(), torch.tensor([3, 12]).int()
    expected = rocflash.attention(q, k, v, seqused_k=good)
    for _ in range(2):
        with pytest.raises(
            rocflash.InvalidArgument,
            match="^seqused_k is 12 for sequence 1; it must be 0 to its length, 11",
        ):
            rocflash.attention(q, k, v, seqused_k=bad)
        assert torch.equal(rocflash.attention(q, k, v, seqused_k=good), expected)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    cu_q, cu_k = torch.tensor([0, 9, 18]).int(), torch.tensor([0, 11, 22]).int()
    for cu, message in (
        (cu_k, None),
        (
            torch.tensor([0, 23, 22]).int(),
            "^cu_seqlens_k decreases from 23 to 22 at sequence 1; it must not decrease",
        ),
    ):
        for _ in range(2):
            call = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu}
            if message is None:
                rocflash.attention(*packed, **call)
                continue
            with pytest.raises(rocflash.InvalidArgument, match=message):
                rocflash.attention(*packed, **call)


def test_a_sparse_tensor_is_rejected_after_a_dense_one() -> None:
    q, k, v = inputs()
    rocflash.attention(q, k, v)
    for wrong in (k.to_sparse(), k.to_mkldnn()):
        with pytest.raises(rocflash.InvalidArgument, match="^k has layout torch"):
            rocflash.attention(q, wrong, v)
    with pytest.raises(TypeError, match="^sinks has type list; it must be a torch.Tensor"):
        rocflash.attention(q, k, v, sinks=[1.0] * 4)


def test_no_tensor_is_kept() -> None:
    def call(grad: bool) -> list[weakref.ref]:
        q, k, v = inputs()
        k = k.transpose(1, 3).contiguous().transpose(1, 3)  # is copied
        sinks = torch.zeros(4)
        options = {"sinks": sinks, "mask": torch.ones(1, 1, 9, 11, dtype=torch.bool)}
        if grad:
            q.requires_grad_()
        found = rocflash.attention(q, k, v, return_lse=True, return_weights=True, **options)
        if grad:
            found[0].sum().backward()
        held = [q, k, v, *options.values(), *found, *([q.grad] if grad else [])]
        return [weakref.ref(x) for x in held]

    for grad in (False, True, False, True):
        held = call(grad)
        gc.collect()
        assert all(x() is None for x in held)


@pytest.mark.usefixtures("only_plans")
def test_threads_share_plans_but_no_frame() -> None:
    work = [inputs(200, 300) for _ in range(16)]  # long enough to overlap
    options = {"causal": True, "return_lse": True}
    expected = [fresh(*x, **options) for x in work]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            found = list(pool.map(lambda x: rocflash.attention(*x, **options), work))
            for a, b in zip(found, expected):
                assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    assert plan._plan.cache_info().currsize == 1


@pytest.mark.usefixtures("only_plans")
def test_nested_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested calls, as from a signal handler or a finalizer."""
    outer, inner = inputs(), inputs()
    expected = [fresh(*x) for x in (outer, inner)]
    found = []
    run = plan.Plan._run_planned

    def interrupted(self: plan.Plan, *arguments: Any) -> None:
        monkeypatch.setattr(plan.Plan, "_run_planned", run)
        found.append(rocflash.attention(*inner))
        run(self, *arguments)

    rocflash.attention(*outer)
    monkeypatch.setattr(plan.Plan, "_run_planned", interrupted)
    found.append(rocflash.attention(*outer))
    assert torch.equal(found[0], expected[1]) and torch.equal(found[1], expected[0])


@pytest.mark.usefixtures("only_plans")
def test_the_library_plans_once_unless_the_workspace_depends_on_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned, described = [], []
    create, run = handles.Handle.__init__, frames.Frame.run
    monkeypatch.setattr(
        handles.Handle, "__init__", lambda self, *x: planned.append(x[0]) or create(self, *x)
    )
    monkeypatch.setattr(frames.Frame, "run", lambda self, *x: described.append(1) or run(self, *x))
    for _ in range(3):
        q, k, v = (x.requires_grad_() for x in inputs())
        rocflash.attention(q, k, v).sum().backward()
    assert planned == ["forward", "backward"] and not described
    for _ in range(3):
        rocflash.attention(*inputs(), seqused_k=torch.tensor([3, 11]).int())
    assert len(planned) == 2 and len(described) == 3


@pytest.mark.usefixtures("only_plans")
def test_unaligned_tensors_are_not_run_by_plans_for_aligned_ones() -> None:
    q, k, v = inputs()
    expected = rocflash.attention(q, k, v)
    for _ in range(2):
        shifted = torch.empty(k.numel() + 1)[1:].view_as(k).copy_(k)
        assert shifted.data_ptr() % 16
        torch.testing.assert_close(rocflash.attention(q, shifted, v), expected)
        assert torch.equal(rocflash.attention(q, k, v), expected)


@pytest.mark.usefixtures("only_plans")
def test_values_inside_of_keys_have_a_plan_of_their_own() -> None:
    """As in MLA's latent cache: the same signature, with and without shared memory."""
    q, rows = torch.randn(2, 3, 4, 24), torch.randn(2, 11, 1, 24)
    inside = rows[..., :16]
    apart = torch.randn(2, 11, 1, 24)[..., :16].copy_(inside)
    expected = fresh(q, rows, compact(inside))
    for v in (inside, apart, inside, apart):
        torch.testing.assert_close(rocflash.attention(q, rows, v), expected)
    (kept,) = {id(p): p for _, p in plan._latest.values()}.values()
    assert [h is not None for h in kept._handles] == [True, True, False, False]


@pytest.mark.usefixtures("only_plans")
def test_handles_are_destroyed_with_their_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    rocflash.attention(*inputs())
    (kept,) = {id(p): p for _, p in plan._latest.values()}.values()
    handle = kept._handles[0]
    destroyed, destroy = [], handle._destroy
    handle._destroy = lambda pointer: destroyed.append(pointer) or destroy(pointer)
    pointer = handle.pointer
    del handle, kept
    forget()
    gc.collect()
    assert destroyed == [pointer] and pointer


def test_a_large_workspace_is_freed() -> None:
    taken = workspace.take(workspace._KEPT + 1)
    assert taken.size > workspace._KEPT and taken.address % 64 == 0
    workspace.give(taken)
    assert taken.size == 0
    small = workspace.take(100)
    address = small.address
    workspace.give(small)
    assert workspace.take(50).address == address


@pytest.mark.usefixtures("only_plans")
def test_changed_numbers_of_threads() -> None:
    """torch.set_num_threads is followed by calls of a kind that has a plan."""
    q, k, v = inputs()
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3, 1):
            torch.set_num_threads(n)
            rocflash.attention(q, k, v)
        assert plan._plan.cache_info()[:2] == (1, 3)  # hits, misses
    finally:
        torch.set_num_threads(before)


def test_caches_with_capacity_for_more_sequences() -> None:
    q = torch.randn(2, 1, 4, 16)
    cache = [torch.randn(5, 12, 2, 16) for _ in "kv"]
    lengths = torch.tensor([7, 12]).int()
    expected = flash_attn_with_kvcache(q, *(x[:2] for x in cache), cache_seqlens=lengths)
    for _ in range(2):
        assert torch.equal(flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths), expected)


def test_without_gradients_lse_and_weights_do_not_affect_out() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for sq in (1, 9):
            arguments = inputs(sq, dtype=dtype)
            out = rocflash.attention(*arguments)
            assert torch.equal(rocflash.attention(*arguments, return_lse=True)[0], out)
            assert torch.equal(flash_attn_func(*arguments), out)


class GpuTensor:
    """As much of a tensor on a GPU as a plan looks at."""

    def __init__(self, data: int, *shape: int) -> None:
        self.shape, self._strides = torch.Size(shape), torch.empty(shape, device="meta").stride()
        self.dtype, self.device, self._data = torch.float16, torch.device("cuda", 1), data

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return self._data

    def is_neg(self) -> bool:
        return False


class NoHandle:
    """A plan of the library's on a machine without a GPU."""

    workspace, pointer = 256, 0

    def __init__(self, call: str, frame: frames.Frame) -> None:
        assert call == "infer"


def test_a_gpu_call_uses_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream and workspace belong to one call, not to its plan."""
    recorded = []

    class Recorded(handles.Run):
        def __init__(self, handle: NoHandle) -> None:
            super().__init__(handle)
            at = handles.AT
            self.call = lambda: recorded.append(
                [self.words[at[name]] for name in ("q", "v", "out", "stream", "workspace_size")]
            )

    def run(self: frames.Frame, stream: int, allocate: Any) -> None:
        recorded.append((stream, allocate._device))

    q, out = GpuTensor(64, 1, 8, 2, 64), GpuTensor(128, 1, 8, 2, 64)
    monkeypatch.setattr(frames.Frame, "run", run)
    monkeypatch.setattr(handles, "Handle", NoHandle)
    monkeypatch.setattr(handles, "Run", Recorded)
    scratch, unaligned = GpuTensor(512, 1), GpuTensor(72, 1, 8, 2, 64)
    monkeypatch.setattr(plan.torch, "empty", lambda *_, **how: scratch)
    numbers = tuple(Options())[TENSORS:]
    for stream in (5, 7):
        monkeypatch.setattr(plan, "current_stream", lambda index, n=stream: 10 * index + n)
        tensors = [q, q, q, *[None] * TENSORS, out, None, None]
        plan.run("infer", (False, False, False), tensors, numbers)
    # The library planned for aligned rows.
    plan.run("infer", (False,) * 3, [q, q, unaligned, *tensors[3:]], numbers)
    assert recorded == [[64, 64, 128, 15, 256], [64, 64, 128, 17, 256], (17, q.device)]
    assert plan._plan.cache_info()[:2] == (0, 1)
