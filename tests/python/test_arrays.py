"""rocflash.attention without torch: NumPy arrays and others that support DLPack."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import rocflash
from rocflash._arrays.exchange import Result


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, n, h, 32)).astype(dtype) for n, h in ((9, 4), (13, 2), (13, 2))]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_equals_torch(dtype: str) -> None:
    """Bitwise equal, with every array option."""
    q, k, v = arrays(dtype)
    rng = np.random.default_rng(1)
    options = {
        "mask": rng.random((2, 1, 9, 13)) > 0.3,
        "bias": rng.standard_normal((1, 4, 1, 13)).astype("float32"),
        "alibi_slopes": rng.random(4).astype("float32"),
        "sinks": rng.random(4).astype("float32"),
        "seqused_k": np.array([13, 7], "int32"),
    }
    numbers = {
        "causal": True,
        "window": (6, 0),
        "softcap": 4.0,
        "softmax_scale": 0.3,
        "dropout_p": 0.2,
    }
    asked = {"return_lse": True, "return_weights": True, "num_threads": 2}
    found = rocflash.attention(q, k, v, rng_state=(5, 6), **options, **numbers, **asked)
    as_torch = {name: torch.from_numpy(x) for name, x in options.items()}
    expected = rocflash.attention(
        *(torch.from_numpy(x) for x in (q, k, v)),
        rng_state=torch.tensor([5, 6]),
        **as_torch,
        **numbers,
        **asked,
    )
    for a, b in zip(found, expected):
        assert isinstance(a, np.ndarray) and np.array_equal(a, b.numpy(), equal_nan=True)


def test_numpy_packed() -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in arrays())
    cu_q, cu_k = np.array([0, 9, 18], "int32"), np.array([0, 13, 26], "int32")
    out = rocflash.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    np.testing.assert_allclose(out.reshape(2, 9, 4, 32), rocflash.attention(*arrays()), atol=1e-6)


class Wrapped:
    """An array library with only DLPack and an array API namespace."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self):
        return self.array.__dlpack__()

    def __array_namespace__(self):
        return np


def test_dlpack_arguments_and_results() -> None:
    q, k, v = arrays()
    found = rocflash.attention(*map(Wrapped, (q, k, v)), causal=True)
    assert np.array_equal(found, rocflash.attention(q, k, v, causal=True))
    held = len(Result._exported)
    del found
    gc.collect()
    assert len(Result._exported) == held - 1  # its memory went with it


def test_bfloat16_through_dlpack() -> None:
    """NumPy has no bf16, but DLPack has: torch mocks another library."""

    class Other:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self):
            return torch.utils.dlpack.to_dlpack(self.tensor)

        def __array_namespace__(self):
            class Space:
                from_dlpack = staticmethod(lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__()))

            return Space

    tensors = [torch.from_numpy(x).bfloat16() for x in arrays()]
    found = rocflash.attention(*map(Other, tensors))
    assert found.dtype == torch.bfloat16 and torch.equal(found, rocflash.attention(*tensors))


def test_refusals_name_the_argument() -> None:
    q, k, v = arrays()
    for call, kind, name in (
        (lambda: rocflash.attention(q, k, [1]), TypeError, "v"),
        (lambda: rocflash.attention(q, k[..., ::2], v), ValueError, "k"),
        (lambda: rocflash.attention(q[0], k, v), ValueError, "q"),
        (lambda: rocflash.attention(q, k, v, dropout_p=0.1), ValueError, "rng_state"),
        (lambda: rocflash.attention(q, k, v, dropout_p=0.1, rng_state=3), ValueError, "rng_state"),
        (lambda: rocflash.attention(q, k, v, softcap="x"), TypeError, "softcap"),
        (lambda: rocflash.attention(q, k, v, generator=torch.Generator()), ValueError, "generator"),
        (lambda: rocflash.attention(q.astype("int32"), k, v), ValueError, "q"),
        (lambda: rocflash.attention(q, k, v, mask=np.ones((2, 2))), ValueError, "mask"),
    ):
        with pytest.raises(kind, match=rf"^{name}\b"):
            call()
