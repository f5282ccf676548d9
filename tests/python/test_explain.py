"""rocflash.explain: kernel selection from Python, compared with the command."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest
import torch

import rocflash
from rocflash._c import abi

COMMAND = abi.library_path().resolve().parents[1] / "bin" / "rocflash"
FAMILIES = (
    "gfx906",
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1030",
    "gfx1100",
    "gfx1201",
    "sm_80",
    "sm_90",
)


def meta(*shape: int, dtype: Any = torch.float16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def problem(
    sq: int = 1024, sk: int = 1024, heads: int = 16, dtype: Any = torch.float16
) -> tuple[Any, ...]:
    return meta(2, sq, heads, 128, dtype=dtype), *(
        meta(2, sk, heads, 128, dtype=dtype) for _ in "kv"
    )


@pytest.mark.parametrize("operation", ("forward", "backward", "decode"))
def test_every_family_answers_for_every_operation(operation: str) -> None:
    for arch in FAMILIES:
        found = rocflash.explain(*problem(), operation=operation, arch=arch, causal=True)
        assert found["arch"] == arch and found["refusal"] is None and found["units"] > 0
        assert found["launches"], (arch, operation)
        for launch in found["launches"]:
            assert launch["block"] > 0 and all(n > 0 for n in launch["grid"])
        for entry in found["launches"] + found["rejected"]:
            parts = [entry["operation"], entry["schedule"]]
            name = "_".join(part for part in parts if part != "tiled")
            assert entry["kernel"].startswith(f"{name}_"), entry


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")
def test_it_agrees_with_the_command() -> None:
    for operation, flags in (("forward", []), ("backward", ["--with", "softcap"])):
        arguments = [
            "--op",
            operation,
            "--arch",
            "gfx942",
            "--batch",
            "2",
            "--heads",
            "16",
            "--dtype",
            "f16",
        ]
        arguments += ["--head-dim", "128", "--seqlen", "1024", "--json", "-", *flags]
        done = subprocess.run([COMMAND, "explain", *arguments], capture_output=True, check=True)
        (expected,) = json.loads(done.stdout)["results"]
        options = {"softcap": 30.0} if flags else {}
        found = rocflash.explain(
            *problem(), operation=operation, arch="gfx942", causal=True, **options
        )
        for key in ("launches", "rejected", "features", "splits", "workspace_bytes", "refusal"):
            assert found[key] == expected[key], key


def test_arrays_options_and_units() -> None:
    q, cache = np.zeros((4, 1, 32, 128), np.float16), np.zeros((4, 8192, 8, 128), np.float16)
    used = np.full(4, 8192, np.int32)
    few, many = (
        rocflash.explain(
            q, cache, cache.copy(), operation="decode", arch="gfx942", units=n, seqused_k=used
        )
        for n in (8, 304)
    )
    assert few["splits"] < many["splits"]
    assert many["launches"][-1]["kernel"].startswith("combine")
    q, k, v = problem()
    unmasked = rocflash.explain(q, k, v, arch="gfx942")
    masked = rocflash.explain(q, k, v, arch="gfx942", bias=meta(1, 1, 1024, 1024), window=(128, 0))
    assert unmasked["features"] == ["a backward pass that may follow"]
    assert "bias" in masked["features"]
    assert any("bias" in r["reason"] for r in masked["rejected"])
    sinks = meta(16, dtype=torch.float32)
    gradients = rocflash.explain(q, k, v, operation="backward", arch="gfx942", sinks=sinks)
    assert any(x["kernel"].startswith("backward_dsinks") for x in gradients["launches"])


def test_combine_and_rotate_have_kernels_on_every_family() -> None:
    partial = meta(8, 2, 4, 16, 128, dtype=torch.float32)
    lse = meta(8, 2, 16, 4, dtype=torch.float32)
    cos = meta(4096, 32)
    for arch in FAMILIES:
        found = rocflash.explain(partial, lse, operation="combine", arch=arch)
        assert [x["kernel"] for x in found["launches"]] == ["combine_f32"], arch
        assert found["splits"] == 8
        found = rocflash.explain(
            meta(2, 100, 16, 128), operation="rotate", arch=arch, rotary_cos=cos, rotary_sin=cos
        )
        assert [x["kernel"] for x in found["launches"]] == ["append_f32"], arch


def test_bad_input_is_rejected_by_name() -> None:
    q, k, v = problem()
    bad: list[tuple[str, dict[str, Any]]] = [
        ("arch is gfx7; it must be one of", {"arch": "gfx7"}),
        ("arch is null and q is on cpu", {}),
        ("units is -1", {"arch": "gfx942", "units": -1}),
        ("operation is 'train'", {"arch": "gfx942", "operation": "train"}),
        ("softcaps is not an option", {"arch": "gfx942", "softcaps": 1.0}),
        ("seqused_k is on meta", {"arch": "gfx942", "seqused_k": meta(2, dtype=torch.int32)}),
        ("seqused_k has shape", {"arch": "gfx942", "seqused_k": np.ones(3, np.int32)}),
    ]
    for message, arguments in bad:
        with pytest.raises(rocflash.InvalidArgument, match=message):
            rocflash.explain(q, k, v, **arguments)
    others: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("v is None; with operation 'forward'", (q, k), {}),
        ("k is given; with operation 'rotate'", (q, k), {"operation": "rotate"}),
        ("softcap is not an option of rotate", (q,), {"operation": "rotate", "softcap": 1.0}),
        ("cos is null", (q,), {"operation": "rotate"}),
        ("softcap is given; combine has no", (q, k), {"operation": "combine", "softcap": 1.0}),
        ("out_partial has dtype f16", (q, k), {"operation": "combine"}),
    ]
    for message, tensors, arguments in others:
        with pytest.raises(rocflash.InvalidArgument, match=message):
            rocflash.explain(*tensors, arch="gfx942", **arguments)


def test_a_call_without_kernels_says_why() -> None:
    q, k, v = (x.to(torch.float64) for x in problem())
    with pytest.raises(rocflash.Error, match="f64"):
        rocflash.explain(q, k, v, arch="gfx942")
