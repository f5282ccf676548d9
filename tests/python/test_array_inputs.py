"""Empty, read-only, broadcast and strided arrays, and rejected ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rocflash
from flash_attn import flash_attn_func


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, n, h, 32)).astype(dtype) for n, h in ((9, 4), (13, 2), (13, 2))]


class Wrapped:
    """An array of another library than NumPy: DLPack, and NumPy's namespace for results."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kind: Any) -> Any:
        return self.array.__dlpack__(**kind)

    def __array_namespace__(self) -> Any:
        return np


def same(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.array_equal(a, b, equal_nan=True)


EMPTY = {
    "batch": (((0, 4, 2, 16), (0, 5, 2, 16)), {}),
    "queries": (((2, 0, 2, 16), (2, 5, 2, 16)), {}),
    "keys": (((2, 4, 2, 16), (2, 0, 2, 16)), {}),
    "packed rows": (
        ((0, 2, 16), (0, 2, 16)),
        {"cu_seqlens_q": [0, 0, 0], "cu_seqlens_k": [0, 0, 0]},
    ),
    "packed keys": (((3, 2, 16), (0, 2, 16)), {"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 0]}),
    "sequences": (((0, 2, 16), (0, 2, 16)), {"cu_seqlens_q": [0], "cu_seqlens_k": [0]}),
}


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("name", EMPTY)
def test_empty_arrays(name: str, kind: Callable[..., Any]) -> None:
    """As torch's empty tensors."""
    (q, k), options = EMPTY[name]
    inputs = [np.ones(shape, "float32") for shape in (q, k, k)]
    lengths = {n: np.array(x, "int32") for n, x in options.items()}
    asked: dict[str, Any] = {"return_lse": True}
    if not options:
        asked["return_weights"] = True
    expected = rocflash.attention(
        *map(torch.from_numpy, inputs),
        **{n: torch.from_numpy(x) for n, x in lengths.items()},
        **asked,
    )
    found = rocflash.attention(
        *map(kind, inputs), **{n: kind(x) for n, x in lengths.items()}, **asked
    )
    same(found, expected)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "last stride": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "Fortran": np.asfortranarray,
    "backwards": lambda x: x[:, ::-1].copy()[:, ::-1],
    "backwards columns": lambda x: x[..., ::-1].copy()[..., ::-1],
    "every other row": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "transposed": lambda x: x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3),
}


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("change", CHANGES)
def test_strides(change: str, dtype: str, kind: Callable[..., Any]) -> None:
    inputs = arrays(dtype)
    changed = [CHANGES[change](x) for x in inputs]
    expected = rocflash.attention(*inputs, causal=True, return_lse=True)
    same(rocflash.attention(*map(kind, changed), causal=True, return_lse=True), expected)


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
def test_strided_options(kind: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    options = {
        "mask": rng.random((2, 1, 9, 26))[..., ::2] > 0.3,
        "bias": np.asfortranarray(rng.standard_normal((2, 4, 9, 13)).astype("float32")),
        "alibi_slopes": rng.random(8).astype("float32")[::2],
        "sinks": rng.random(8).astype("float32")[::-2],
        "seqused_k": np.array([13, 0, 7, 0], "int32")[::2],
        "seqused_q": np.broadcast_to(np.int32(8), (2,)),
    }
    expected = rocflash.attention(*arrays(), **{n: x.copy() for n, x in options.items()})
    found = rocflash.attention(*map(kind, arrays()), **{n: kind(x) for n, x in options.items()})
    same([found], [expected])


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
def test_read_only_and_broadcast(kind: Callable[..., Any]) -> None:
    q, k, v = arrays()
    for x in (q, k, v):
        x.flags.writeable = False
    one_head = np.broadcast_to(k[:, :, :1], k.shape)
    one_column = np.broadcast_to(v[..., :1], v.shape)  # even the last stride is 0
    found = rocflash.attention(*map(kind, (q, one_head, one_column)), return_lse=True)
    same(found, rocflash.attention(q.copy(), one_head.copy(), one_column.copy(), return_lse=True))


def test_unaligned_and_structured() -> None:
    q, k, v = arrays()
    record = np.zeros(k.shape, dtype=[("tag", "i1"), ("value", "f4")])
    record["value"] = k
    memory = np.zeros(v.nbytes + 1, "u1")
    shifted = memory[1:].view("f4").reshape(v.shape)
    shifted[...] = v
    assert not shifted.flags.aligned
    same([rocflash.attention(q, record["value"], shifted)], [rocflash.attention(q, k, v)])


def test_double_precision_by_the_reference() -> None:
    inputs = arrays("float64")
    out = rocflash.attention(*inputs, backend="reference")
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, rocflash.attention(*arrays(), backend="reference"), atol=1e-5)
    with pytest.raises(rocflash.Error, match="^q has dtype f64"):
        rocflash.attention(*inputs)


def test_subclasses() -> None:
    class Mine(np.ndarray):
        pass

    q, k, v = arrays()
    found = rocflash.attention(*(x.view(Mine) for x in (q, k, v)))
    assert type(found) is np.ndarray and np.array_equal(found, rocflash.attention(q, k, v))


def _packed(**changes: Any) -> dict[str, Any]:
    cu = np.array([0, 9], "int32")
    given = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 9, "max_seqlen_k": 9}
    return {**given, "return_weights": True, **changes}


ROWS = [np.ones((9, 2, 16), "float32")] * 3
PAGES = [np.ones((1, 4, 2, 16), "float32"), *[np.ones((3, 8, 2, 16), "float32")] * 2]


@pytest.mark.parametrize(
    ("make", "kind", "name"),
    [
        (lambda q, k, v: ((q.reshape(-1)[0:1].reshape(()), k, v), {}), ValueError, "q"),
        (lambda q, k, v: ((None, k, v), {}), TypeError, "q"),
        (lambda q, k, v: ((q, None, v), {}), TypeError, "k"),
        (lambda q, k, v: ((q, k, v[0]), {}), ValueError, "v"),
        (lambda q, k, v: ((q, k[None], v), {}), ValueError, "k"),
        (lambda q, k, v: ((q.astype(object), k, v), {}), ValueError, "q"),
        (lambda q, k, v: ((q, k.astype(">f4"), v), {}), ValueError, "k"),
        (lambda q, k, v: ((q, k, v.astype("complex64")), {}), ValueError, "v"),
        (lambda q, k, v: ((q, np.ma.masked_array(k, k > 1), v), {}), ValueError, "k"),
        (lambda q, k, v: ((q, k, v), {"mask": np.ma.masked_array([[[[True]]]])}), ValueError,
        "mask"),
        (lambda q, k, v: ((q, k, v), {"seqused_k": np.array([1, 2])}), ValueError, "seqused_k"),
        (lambda q, k, v: ((q, k, v), {"seqused_k": [1, 2]}), TypeError, "seqused_k"),
        (lambda q, k, v: ((q, k, v), {"num_splits": 2.5}), TypeError, "num_splits"),
        (lambda q, k, v: ((q, k, v), {"num_splits": True}), TypeError, "num_splits"),
        (lambda q, k, v: ((q, k, v), {"softcap": "3"}), TypeError, "softcap"),
        (lambda q, k, v: ((q, k, v), {"softcap": True}), TypeError, "softcap"),
        (lambda q, k, v: ((q, k, v), {"window": (2.5, 0)}), ValueError, "window"),
        (lambda q, k, v: ((q, k, v), {"window": (float("inf"), 0)}), ValueError, "window"),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 0.5, "rng_state": (1.5, 2)}), ValueError,
        "rng_state"),
        (lambda q, k, v: ((q, k, v), {"causal": 2}), TypeError, "causal"),
        (lambda q, k, v: ((q, k, v), {"causal": None}), TypeError, "causal"),
        (lambda *_: (ROWS, _packed(cu_seqlens_q=np.int32([9])[0:1].reshape(()))), ValueError,
        "cu_seqlens_q"),
        (lambda *_: (ROWS, _packed(cu_seqlens_q=np.array([[0, 9]], "int32"))), ValueError,
        "cu_seqlens_q"),
        (lambda *_: (ROWS, _packed(cu_seqlens_q=np.zeros(0, "int32"))), ValueError, "cu_seqlens_q"),
        (lambda *_: (ROWS, _packed(cu_seqlens_k=np.array(9, "int32"))), ValueError, "cu_seqlens_k"),
        (lambda *_: (ROWS, _packed(max_seqlen_q=None)), ValueError, "max_seqlen_q"),
        (lambda *_: (ROWS, _packed(max_seqlen_q=-3)), ValueError, "max_seqlen_q"),
        (lambda *_: (ROWS, _packed(max_seqlen_k=-3)), ValueError, "max_seqlen_k"),
        (lambda *_: (ROWS, _packed(max_seqlen_k=2.5)), TypeError, "max_seqlen_k"),
        (lambda *_: (PAGES, {"block_table": np.array([0, 1], "int32"), "return_weights": True}),
        ValueError, "block_table"),
        (lambda *_: (PAGES, {"block_table": np.array(0, "int32"), "return_weights": True}),
        ValueError, "block_table"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(make: Any, kind: type, name: str) -> None:
    tensors, options = make(*arrays())
    with pytest.raises(kind, match=rf"^{name}\b"):
        rocflash.attention(*tensors, **options)
    if kind is ValueError:
        with pytest.raises(rocflash.InvalidArgument):
            rocflash.attention(*tensors, **options)


@pytest.mark.parametrize(
    "cu", [torch.tensor(9).int(), torch.tensor([[0, 9]]).int()], ids=["0-d", "2-d"]
)
@pytest.mark.parametrize(
    "lengths", [{}, {"max_seqlen_q": 9, "max_seqlen_k": 9}], ids=["found", "given"]
)
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k"])
def test_arrays_and_tensors_have_equal_errors(
    name: str, lengths: dict[str, int], cu: torch.Tensor
) -> None:
    rows, good = torch.ones(9, 2, 16), torch.tensor([0, 9]).int()
    options = {"cu_seqlens_q": good, "cu_seqlens_k": good, name: cu, **lengths}
    with pytest.raises(rocflash.InvalidArgument, match=f"^{name} has "):
        rocflash.attention(rows, rows, rows, return_weights=True, **options)


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
def test_negative_lengths_of_tensors(name: str) -> None:
    rows, cu = torch.ones(9, 2, 16), torch.tensor([0, 9]).int()
    lengths = {"max_seqlen_q": 9, "max_seqlen_k": 9, name: -2}
    with pytest.raises(rocflash.InvalidArgument, match=f"^{name} is -2"):
        rocflash.attention(
            rows, rows, rows, cu_seqlens_q=cu, cu_seqlens_k=cu, return_weights=True, **lengths
        )


@pytest.mark.parametrize("window", [(2.5, 0), (1, float("inf")), torch.tensor([1.5, 2])], ids=str)
def test_windows_are_not_rounded(window: Any) -> None:
    x = torch.ones(1, 4, 2, 16)
    for call in (
        lambda: rocflash.attention(x, x, x, window=window),
        lambda: rocflash.decode(x, x, x, window=window),
        lambda: flash_attn_func(x, x, x, window_size=window),
    ):
        with pytest.raises(rocflash.InvalidArgument, match="^window"):
            call()
    rocflash.attention(x, x, x, window=torch.tensor([1, 2]))
    rocflash.attention(x, x, x, window=(1.0, 2))


def test_numpy_numbers() -> None:
    q, k, v = arrays()
    found = rocflash.attention(
        q, k, v, causal=np.True_, softcap=np.float32(3), num_splits=np.int64(2), window=np.array([4,
        0])
    )  # fmt: skip
    expected = rocflash.attention(q, k, v, causal=True, softcap=3, num_splits=2, window=(4, 0))
    assert np.array_equal(found, expected)


def test_an_unknown_instruction_set_is_reported() -> None:
    code = "import rocflash; rocflash.{}()"
    for name in ("devices", "info"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)],
            env={**os.environ, "ROCFLASH_CPU_ISA": "avx9000"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert "rocflash.errors.InvalidArgument: ROCFLASH_CPU_ISA is 'avx9000'; " in done.stderr
