"""rocflash.decode on NumPy and DLPack arrays: bitwise equal to that on torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from child import succeeds
from test_array_inputs import Wrapped

import rocflash

B, H, HK, D, LENGTH, NEW = 2, 4, 2, 32, 24, 3


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def dense(batch: int = B) -> dict[str, Any]:
    return {
        "q": random(B, NEW, H, D),
        "k_cache": random(batch, LENGTH, HK, D),
        "v_cache": random(batch, LENGTH, HK, D) + 1,
        "cache_seqlens": np.array([5, 17], "int32"),
    }


def new_keys() -> dict[str, Any]:
    return {"k": random(B, NEW, HK, D), "v": random(B, NEW, HK, D) - 1}


def rotary() -> dict[str, Any]:
    angles = np.outer(np.arange(40), 1 / 100 ** np.linspace(0, 1, 8)).astype("float32")
    return {"rotary_cos": np.cos(angles), "rotary_sin": np.sin(angles)}


def paged() -> dict[str, Any]:
    pages = np.array([[4, 1, 0], [5, 2, 3]], "int32")
    caches = {"k_cache": random(6, 8, HK, D), "v_cache": random(6, 8, HK, D) + 1}
    return {**dense(), **caches, "page_table": pages}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "dense": dense,
    "appended": lambda: {**dense(), **new_keys(), "causal": True},
    "rotary": lambda: {**dense(), **new_keys(), **rotary(), "causal": True},
    "rotary in halves": lambda: {
        **dense(),
        **new_keys(),
        **rotary(),
        "rotary_interleaved": False,
        "rotary_seqlens": np.array([2, 9], "int32"),
    },
    "paged": lambda: {**paged(), "window": (9, 0), "softcap": 4.0},
    "paged, appended": lambda: {**paged(), **new_keys(), "num_splits": 2},
    "capacity for more": lambda: {**dense(5), **new_keys(), "cache_seqlens": 7},
    "batch index": lambda: {**dense(4), "cache_batch_idx": np.array([3, 1], "int32")},
    "left pad": lambda: {**dense(), "cache_leftpad": np.array([1, 4], "int32")},
    "packed": lambda: {
        **dense(),
        **{"q": random(4, H, D), "k": random(5, HK, D), "v": random(5, HK, D) - 1},
        "cu_seqlens_q": np.array([0, 1, 4], "int32"),
        "cu_seqlens_k_new": np.array([0, 3, 5], "int32"),
        "max_seqlen_q": 3,
        "causal": True,
    },
    "slopes and sinks": lambda: {
        **dense(),
        "alibi_slopes": random(H) ** 2,
        "sinks": random(H),
        "softmax_scale": 0.2,
        "attention_chunk": 8,
    },
}


def split(
    case: dict[str, Any], kind: Callable[[np.ndarray], Any]
) -> tuple[list[Any], dict[str, Any]]:
    made = {n: kind(x) if isinstance(x, np.ndarray) else x for n, x in case.items()}
    return [made.pop(name) for name in ("q", "k_cache", "v_cache")], made


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_caches_equal_those_of_tensors(name: str, kind: Callable[..., Any]) -> None:
    case, theirs = CASES[name](), CASES[name]()
    tensors, options = split(theirs, torch.from_numpy)
    expected = rocflash.decode(*tensors, **options)
    arrays, options = split(case, kind)
    found = rocflash.decode(*arrays, **options)
    for a, b in zip(found, expected):
        assert isinstance(a, np.ndarray) and np.array_equal(a, b.numpy())
    for cache in ("k_cache", "v_cache"):
        assert np.array_equal(case[cache], theirs[cache])
    changed = not np.array_equal(case["k_cache"], CASES[name]()["k_cache"])
    assert changed == ("k" in case)


def test_out_and_lse() -> None:
    (q, k, v), options = split(CASES["appended"](), np.asarray)
    expected, _ = rocflash.decode(q, k.copy(), v.copy(), **options)
    out = np.full((B, NEW, H, 2 * D), np.nan, "float32")[..., :D]
    found, lse = rocflash.decode(q, k, v, out=out, want_lse=False, **options)
    assert found is out and lse is None and np.array_equal(out, expected)


def test_half_precision_and_strided_caches() -> None:
    (q, k, v), options = split(CASES["appended"](), np.asarray)
    half = {n: x.astype("float16") if n in "kv" else x for n, x in options.items()}
    caches = [np.zeros((B, HK, LENGTH, D), "float16").transpose(0, 2, 1, 3) for _ in "kv"]
    for cache, x in zip(caches, (k, v)):
        cache[...] = x
    baseline = [x.astype("float16") for x in (k, v)]
    found = rocflash.decode(q.astype("float16"), *caches, **half)
    expected = rocflash.decode(q.astype("float16"), *baseline, **half)
    assert np.array_equal(found[0], expected[0]) and found[0].dtype == np.float16
    assert all(np.array_equal(a, b) for a, b in zip(caches, baseline))


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("kind", [np.asarray, Wrapped], ids=["numpy", "dlpack"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda c: {"k_cache": read_only(c["k_cache"])}, ValueError, "^k_cache is read-only"),
        (lambda c: {"v_cache": read_only(c["v_cache"])}, ValueError, "^v_cache is read-only"),
        (lambda c: {"k_cache": np.broadcast_to(c["k_cache"][:1], c["k_cache"].shape)}, ValueError,
        "^k_cache is read-only; it must be writable"),
        (lambda c: {"k_cache": np.repeat(c["k_cache"], 2, -1)[..., ::2]}, ValueError,
        "^k_cache has stride"),
        (lambda c: {"k_cache": c["k_cache"][0]}, ValueError, "^k_cache has shape"),
        (lambda c: {"v": c["v"][:, :1]}, ValueError, "^v has shape"),
        (lambda c: {"cache_seqlens": None}, ValueError, "^cache_seqlens is None"),
        (lambda c: {"cache_seqlens": -1}, ValueError, "^cache_seqlens is -1"),
        (lambda c: {"cache_seqlens": "all"}, TypeError, "^cache_seqlens has type str"),
        (lambda c: {"cache_seqlens": np.array([5, 23], "int32")}, ValueError,
        "^k exceeds the KV cache: sequence 1 has 23 keys"),
        (lambda c: {"cache_seqlens": True}, TypeError, "^cache_seqlens has type bool"),
        (lambda c: {"k": None, "v": None, **rotary()}, ValueError, "^rotary_cos is given"),
        (lambda c: {"rotary_interleaved": 3}, TypeError, "^rotary_interleaved is 3"),
        (lambda c: {"window": 3}, ValueError, "^window_size is 3"),
        (lambda c: {"qv": c["q"]}, NotImplementedError, "^qv is given"),
        (lambda c: {"out": read_only(c["q"].copy())}, ValueError, "^out is read-only"),
        (lambda c: {"page_table": np.zeros(2, "int32")}, ValueError, "^page_table has shape"),
        (lambda c: {"cu_seqlens_q": np.array(3, "int32"), "q": c["q"][0]}, ValueError,
        "^cu_seqlens_q has shape"),
    ],
)  # fmt: skip
def test_refusals(change: Any, error: type, words: str, kind: Callable[..., Any]) -> None:
    """Errors have the caller's argument names, and nothing is written."""
    case = CASES["appended"]()
    before = case["k_cache"].copy()
    changed = {**case, **change(case)}
    arrays, options = split(changed, kind)
    with pytest.raises(error, match=words):
        rocflash.decode(*arrays, **options)
    assert np.array_equal(case["k_cache"], before)


def test_a_read_only_cache_is_accepted() -> None:
    (q, k, v), options = split(dense(), np.asarray)
    expected, _ = rocflash.decode(q, k, v, **options)
    found, _ = rocflash.decode(q, read_only(k), read_only(v), **options)
    assert np.array_equal(found, expected)


def test_torch_is_not_needed() -> None:
    code = (
        "import sys, numpy, rocflash; x = numpy.ones((1, 4, 2, 16), 'float32');"
        "rocflash.decode(x[:, :1].copy(), x, x.copy(), cache_seqlens=2, k=x[:, :1] * 2, v=x[:, :1] "
        "* 3);"
        "assert x[0, 2, 0, 0] == 2 and 'torch' not in sys.modules"
    )
    succeeds(code)
