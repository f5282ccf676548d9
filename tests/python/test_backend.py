"""Backend selection: `use_backend` applies to its context, and backward uses the backend of
forward, in compiled graphs too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from child import python

import rocflash
from flash_attn import flash_attn_func
from rocflash import use_backend


@pytest.fixture(autouse=True)
def _default_afterwards() -> Iterator[None]:
    yield
    assert rocflash.backend() == "auto"


def inputs(**kind: Any) -> list[torch.Tensor]:
    return [torch.randn(2, n, 4, 16, **kind) for n in (5, 70, 70)]


def test_interleaved_blocks_of_threads() -> None:
    """Each thread keeps its own backend, and that of the process is unchanged."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    recorded: dict[str, str] = {}

    def first() -> None:
        with use_backend("reference"):
            first_is_in.set()
            second_is_in.wait(10)
            recorded["first"] = rocflash.backend()
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(10)
        recorded["before"] = rocflash.backend()
        with use_backend("naive"):
            second_is_in.set()
            first_is_out.wait(10)
            recorded["second"] = rocflash.backend()
        recorded["after"] = rocflash.backend()

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert recorded == {"first": "reference", "before": "auto", "second": "naive", "after": "auto"}


def test_threads_use_their_own_backend() -> None:
    q, k, v = inputs()
    names = ("cpu", "reference", "naive", "standard")
    expected = {name: rocflash.attention(q, k, v, backend=name) for name in names}

    def some(name: str) -> bool:
        good = True
        for _ in range(20):
            with use_backend(name):
                good &= torch.equal(rocflash.attention(q, k, v), expected[name])
                good &= torch.equal(flash_attn_func(q, k, v), expected[name])
        return good

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(some, names * 4))


def test_nested_blocks_and_set_backend() -> None:
    with use_backend("reference"):
        with use_backend("native"):
            assert rocflash.backend() == "auto"
        rocflash.set_backend("naive")  # for the process, and not for this block
        try:
            assert rocflash.backend() == "reference"
            assert rocflash.info()["why"].startswith("chosen by use_backend")
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(rocflash.backend).result() == "naive"
                assert (
                    pool.submit(rocflash.info).result()["why"].startswith("chosen by set_backend")
                )
        finally:
            rocflash.set_backend(None)
    with pytest.raises(KeyError), use_backend("naive"):
        raise KeyError


def test_plain_is_an_alias_of_naive() -> None:
    """The former name of the backend naive."""
    q, k, v = inputs()
    expected = rocflash.attention(q, k, v, backend="naive")
    assert torch.equal(rocflash.attention(q, k, v, backend="plain"), expected)
    with use_backend("plain"):
        assert rocflash.backend() == "naive"
        assert torch.equal(rocflash.attention(q, k, v), expected)
    rocflash.set_backend("plain")
    try:
        assert rocflash.backend() == "naive"
        assert torch.equal(rocflash.attention(q, k, v), expected)
    finally:
        rocflash.set_backend(None)
    code = "import rocflash; print(rocflash.backend())"
    assert python("-c", code, ROCFLASH_BACKEND="plain").stdout == "naive\n"


def test_a_block_is_reusable() -> None:
    block = use_backend("reference")
    with block, use_backend("naive"), block:
        assert rocflash.backend() == "reference"


def test_decorated_functions() -> None:
    @use_backend("reference")
    def fall(n: int) -> list[str]:
        return [rocflash.backend(), *(fall(n - 1) if n else [])]

    assert fall(2) == ["reference"] * 3 and fall.__name__ == "fall"

    @use_backend("naive")
    async def later() -> str:
        await asyncio.sleep(0)
        return rocflash.backend()

    assert asyncio.run(later()) == "naive"
    with pytest.raises(ValueError, match="^backend is 'quick'; allowed are auto"):
        use_backend("quick")

    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="^use_backend decorates .*generator, a generator"):
        use_backend("naive")(generator)


def test_tasks_inherit_the_backend_of_their_parent() -> None:
    async def one(name: str, rounds: int) -> list[str]:
        with use_backend(name):
            recorded = []
            for _ in range(rounds):
                await asyncio.sleep(0)
                recorded.append(rocflash.backend())
            return recorded

    async def inherited() -> str:
        return rocflash.backend()

    async def both() -> None:
        found = await asyncio.gather(one("reference", 3), one("naive", 5), one("cpu", 2))
        assert found == [["reference"] * 3, ["naive"] * 5, ["cpu"] * 2]
        with use_backend("standard"):
            assert await asyncio.create_task(inherited()) == "standard"
        assert await asyncio.create_task(inherited()) == "auto"

    asyncio.run(both())


def gradients(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(out, leaves, torch.ones_like(out)))


@pytest.mark.parametrize("options", [{}, {"return_lse": True}], ids=["out", "lse"])
def test_backward_uses_the_backend_of_forward(options: dict[str, Any]) -> None:
    """Outside of the block, in another thread, and inside of another block."""
    leaves = inputs(requires_grad=True)

    def forward(**backend: str) -> torch.Tensor:
        found = rocflash.attention(*leaves, **options, **backend)
        return found[0] if options else found

    expected = gradients(forward(backend="reference"), leaves)
    assert not torch.equal(expected[0], gradients(forward(backend="naive"), leaves)[0])
    with use_backend("reference"):
        outs = [forward() for _ in range(3)]
    with ThreadPoolExecutor(1) as pool, use_backend("naive"):
        found = [gradients(outs[0], leaves), pool.submit(gradients, outs[1], leaves).result()]
    found.append(gradients(outs[2], leaves))
    for each in found:
        assert all(torch.equal(a, b) for a, b in zip(each, expected))


@pytest.mark.parametrize(("fullgraph", "compiler"), [(True, "inductor"), (False, "aot_eager")])
def test_compiled_calls_read_the_context_at_run_time(fullgraph: bool, compiler: str) -> None:
    """One graph for all contexts; its gradients are those of its forward."""
    leaves = inputs(requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)
    with use_backend("naive"):  # from now on contexts matter
        pass

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return rocflash.attention(q * 1.5, k, v, sinks=s) + flash_attn_func(q, k, v)

    compiled = torch.compile(f, fullgraph=fullgraph, backend=compiler, dynamic=False)
    arguments = [*leaves, sinks]
    outs, expected = {}, {}
    for name in ("auto", "reference", "naive", "standard"):
        with use_backend(name):
            outs[name] = compiled(*arguments)
            right = f(*arguments)
        assert torch.equal(outs[name], right)
        expected[name] = gradients(right, arguments)
    assert not torch.equal(outs["naive"], outs["reference"])
    with use_backend("cpu"):
        for name, out in outs.items():
            for a, b in zip(gradients(out, arguments), expected[name]):
                assert torch.equal(a, b) and a.dtype is b.dtype


def by_operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str) -> torch.Tensor:
    """As graphs compute it: like forward that gradients may follow, which may round otherwise."""
    return rocflash.attention(q.clone().requires_grad_(), k, v, backend=name).detach()


def test_a_block_inside_a_compiled_function() -> None:
    q, k, v = inputs()

    @torch.compile(backend="eager")
    def f(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with use_backend("reference"):
            a = rocflash.attention(q + 0, k, v)
        return a, rocflash.attention(q + 0, k, v)

    for _ in range(2):
        a, b = f(q)
        assert torch.equal(a, by_operator(q, k, v, "reference"))
        assert torch.equal(b, by_operator(q, k, v, "auto"))


def test_compiled_calls_follow_set_backend() -> None:
    q, k, v = inputs()
    compiled = torch.compile(lambda q: rocflash.attention(q + 0, k, v), backend="eager")
    for name in ("auto", "reference", "naive"):
        rocflash.set_backend(name)
        try:
            found = compiled(q)
        finally:
            rocflash.set_backend(None)
        assert torch.equal(found, by_operator(q, k, v, name))
