"""Each client's call on the CPU, compared with the double-precision reference."""

from __future__ import annotations

import client_calls
import pytest
import servers
import torch

import rocflash


def judged(name: str, found: list[torch.Tensor], dtype: torch.dtype) -> None:
    """The error bound: at most twice (gradients: three times) the error of naive attention in the
    same dtype.
    """

    def by(backend: str) -> list[torch.Tensor]:
        with rocflash.use_backend(backend):
            return client_calls.CALLS[name](client_calls.Inputs("cpu", dtype))

    exact, baseline = by("reference"), by("naive")
    assert len(found) == len(exact)
    for n, (a, b, c) in enumerate(zip(found, exact, baseline)):
        assert a.shape == b.shape and not a.isnan().any(), n
        error, allowed = (
            (x.detach().cpu().double() - b.detach().double()).abs().max() for x in (a, c)
        )
        times = 2 if n < client_calls.BEFORE_GRADIENTS.get(name, len(found)) else 3
        assert error <= times * allowed + 1e-5, (n, error, allowed)


@pytest.mark.parametrize("name", client_calls.CALLS)
def test_call(name: str) -> None:
    found = client_calls.CALLS[name](client_calls.Inputs("cpu", torch.bfloat16))
    judged(name, found, torch.bfloat16)


@pytest.mark.parametrize("name", ["vllm_decoder", "sglang_decode"])
def test_server_calls_do_not_synchronize(name: str) -> None:
    """On a GPU reading a value on the host synchronizes, and breaks the capture of a graph."""
    with servers.nothing_read():
        client_calls.CALLS[name](client_calls.Inputs("cpu", torch.bfloat16))
