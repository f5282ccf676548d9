"""Calls that are prepared once and repeated: never a stale answer, a lost refusal or a kept tensor."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import rocflash
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from rocflash._c import frames, workspace
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
    """Nothing is prepared. Plain calls take the short cut of fast.py, or, like others, plans."""
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
    """The answer of a call that finds nothing prepared, by the long way."""
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
    assert plan._plan.cache_info()[:2] == (0, 1)  # hits, misses: nobody asked again
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
    "plain": lambda q, k, v: ((q, k, v), {}),
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
def test_every_change_gives_its_own_answer(asked: dict) -> None:
    """Calls in turn, twice over, are as if each were the first of the process, on compact tensors."""
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
        ({"causal": True}, {"causal": 1.0}, r"^causal: 1.0 \(float\)"),
        ({"num_splits": 1}, {"num_splits": True}, r"^num_splits: True \(bool\)"),
        ({"num_splits": 1}, {"num_splits": 1.0}, r"^num_splits: 1.0 \(float\)"),
        ({"softcap": 1.0}, {"softcap": True}, r"^softcap: True \(bool\)"),
        ({"softcap": 1.0}, {"softcap": torch.tensor(1.0)}, "^softcap: tensor"),
        ({"softmax_scale": 1.0}, {"softmax_scale": [1.0]}, "^softmax_scale: "),
        ({"deterministic": False}, {"deterministic": 0.0}, "^deterministic: 0.0"),
    ],
)
def test_equal_numbers_of_another_type_are_still_refused(
    right: dict, wrong: dict, text: str
) -> None:
    arguments = inputs()
    rocflash.attention(*arguments, **right)
    for _ in range(2):
        with pytest.raises(TypeError, match=text):
            rocflash.attention(*arguments, **wrong)
    rocflash.attention(*arguments, **right)


def test_numbers_that_do_not_fit_are_refused() -> None:
    for name, value in (("attention_chunk", 2**70), ("num_splits", 2**31)):
        for arguments in (inputs(), [x.numpy() for x in inputs()]):
            with pytest.raises(rocflash.InvalidArgument, match=f"^{name}: .* must fit into"):
                rocflash.attention(*arguments, **{name: value})


def test_values_are_checked_in_every_call() -> None:
    """A good call does not vouch for the next one of its kind, nor a bad one spoil it."""
    q, k, v = inputs()
    good, bad = torch.tensor([3, 11]).int(), torch.tensor([3, 12]).int()
    expected = rocflash.attention(q, k, v, seqused_k=good)
    for _ in range(2):
        with pytest.raises(rocflash.InvalidArgument, match="^seqused_k: "):
            rocflash.attention(q, k, v, seqused_k=bad)
        assert torch.equal(rocflash.attention(q, k, v, seqused_k=good), expected)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    cu_q, cu_k = torch.tensor([0, 9, 18]).int(), torch.tensor([0, 11, 22]).int()
    for cu, message in ((cu_k, None), (torch.tensor([0, 23, 22]).int(), "^cu_seqlens_k: ")):
        for _ in range(2):
            call = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu}
            if message is None:
                rocflash.attention(*packed, **call)
                continue
            with pytest.raises(rocflash.InvalidArgument, match=message):
                rocflash.attention(*packed, **call)


def test_a_sparse_tensor_is_refused_after_a_dense_one() -> None:
    q, k, v = inputs()
    rocflash.attention(q, k, v)
    for wrong in (k.to_sparse(), k.to_mkldnn()):
        with pytest.raises(rocflash.InvalidArgument, match="^k: layout torch"):
            rocflash.attention(q, wrong, v)
    with pytest.raises(TypeError, match="^sinks: list; it must be a torch.Tensor"):
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
def test_a_call_inside_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler or a finaliser may make one, at the worst moment."""
    outer, inner = inputs(), inputs()
    expected = [fresh(*x) for x in (outer, inner)]
    found = []
    run = frames.Frame.run

    def interrupted(self: frames.Frame, *arguments: Any) -> None:
        monkeypatch.setattr(frames.Frame, "run", run)
        found.append(rocflash.attention(*inner))
        run(self, *arguments)

    monkeypatch.setattr(frames.Frame, "run", interrupted)
    found.append(rocflash.attention(*outer))
    assert torch.equal(found[0], expected[1]) and torch.equal(found[1], expected[0])


@pytest.mark.usefixtures("only_plans")
def test_the_workspace_is_asked_for_where_values_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    prepare = frames.Frame.prepare

    def counted(self: frames.Frame, *arguments: Any) -> None:
        prepare(self, *arguments)
        query = self._query
        self._query = lambda: asked.append(1) or query()

    monkeypatch.setattr(frames.Frame, "prepare", counted)
    for _ in range(3):
        rocflash.attention(*inputs())
    assert len(asked) == 1
    for _ in range(3):
        rocflash.attention(*inputs(), seqused_k=torch.tensor([3, 11]).int())
    assert len(asked) == 4


def test_a_large_workspace_is_not_kept() -> None:
    taken = workspace.take(workspace._KEPT + 1)
    assert taken.size > workspace._KEPT and taken.address % 64 == 0
    workspace.give(taken)
    assert taken.size == 0
    small = workspace.take(100)
    address = small.address
    workspace.give(small)
    assert workspace.take(50).address == address


@pytest.mark.usefixtures("only_plans")
def test_other_numbers_of_threads() -> None:
    """torch.set_num_threads is followed by calls of a kind that was seen before."""
    q, k, v = inputs()
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 3, 1):
            torch.set_num_threads(n)
            rocflash.attention(q, k, v)
        assert plan._plan.cache_info()[:2] == (1, 3)  # hits, misses
    finally:
        torch.set_num_threads(before)


def test_caches_with_room_for_more_sequences() -> None:
    q = torch.randn(2, 1, 4, 16)
    cache = [torch.randn(5, 12, 2, 16) for _ in "kv"]
    lengths = torch.tensor([7, 12]).int()
    expected = flash_attn_with_kvcache(q, *(x[:2] for x in cache), cache_seqlens=lengths)
    for _ in range(2):
        assert torch.equal(flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths), expected)


def test_without_gradients_lse_and_weights_change_nothing() -> None:
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


def test_a_gpu_call_goes_to_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream and scratch memory belong to one call, not to its plan."""
    seen = []

    def run(self: frames.Frame, stream: int, allocate: Any, as_ever: bool) -> None:
        seen.append((stream, allocate._device, as_ever))

    q, out = GpuTensor(64, 1, 8, 2, 64), GpuTensor(128, 1, 8, 2, 64)
    monkeypatch.setattr(frames.Frame, "run", run)
    numbers = tuple(Options())[TENSORS:]
    for stream in (5, 7):
        monkeypatch.setattr(plan, "current_stream", lambda index, n=stream: 10 * index + n)
        tensors = [q, q, q, *[None] * 12, out, None, None]
        plan.run("infer", (False, False, False), tensors, numbers)
    # Which kernels run depends on where rows lie, and so may the workspace.
    plan.run("infer", (False,) * 3, [q, q, GpuTensor(72, 1, 8, 2, 64), *tensors[3:]], numbers)
    assert seen == [(15, q.device, True), (17, q.device, True), (17, q.device, False)]
    assert plan._plan.cache_info()[:2] == (0, 1)
