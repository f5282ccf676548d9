"""The package as such: import without torch, choice of backend, reports, proofs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from child import python

import rocflash

ROOT = Path(__file__).parents[2]


def test_import_needs_no_torch() -> None:
    code = "import sys, rocflash; rocflash.info(); assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert python("-c", code).returncode == 0


def test_import_is_quick() -> None:
    """Under 100 ms of processor time, which other programs do not lengthen; the best of several."""
    code = (
        "import time; begin = time.process_time(); import rocflash; "
        "print(time.process_time() - begin)"
    )
    assert min(float(python("-c", code).stdout) for _ in range(7)) < 0.1


def test_backend_choice() -> None:
    q = torch.randn(1, 9, 2, 16)
    assert rocflash.backend() == "auto"
    with rocflash.use_backend("reference"):
        assert rocflash.backend() == "reference" and "use_backend" in rocflash.info()["why"]
        judged = rocflash.attention(q, q, q)
    assert rocflash.backend() == "auto"
    assert torch.equal(judged, rocflash.attention(q, q, q, backend="reference"))
    with pytest.raises(ValueError, match="^backend: 'quick'; allowed are auto"):
        rocflash.attention(q, q, q, backend="quick")
    code = "import rocflash; print(rocflash.backend(), rocflash.info()['why'])"
    told = python("-c", code, ROCFLASH_BACKEND="standard").stdout
    assert told.startswith("standard chosen by ROCFLASH_BACKEND=standard")
    refused = python("-c", code, ROCFLASH_BACKEND="quick")
    assert "ROCFLASH_BACKEND: 'quick'" in refused.stderr


def test_info_reports() -> None:
    told = python(
        "-c", "import rocflash; print(rocflash.info())", FLASH_ATTENTION_TRITON_AMD_ENABLE="TRUE"
    )
    chosen = "backend: triton (chosen by FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE"
    for words in ("rocflash 0.1.0", chosen, "backend symbol: ", "device: cpu:0", "driver: hip", "'TRUE'"):
        assert words in told.stdout, told.stdout + told.stderr


def test_info_says_what_a_device_computes() -> None:
    """By asking it; the same answers as calls give."""
    (cpu,) = (device for device in rocflash.devices() if device["type"] == "cpu")
    assert set(cpu["computes"]) == {"forward", "backward", "decode"}
    largest = cpu["computes"]["backward"]["f32"]
    assert f"backward: head sizes of f16 bf16 f32 to {largest}" in str(rocflash.info())
    q = torch.randn(1, 2, 1, largest, requires_grad=True)
    rocflash.attention(q, q, q).sum().backward()
    with pytest.raises(rocflash.Error):
        wide = torch.randn(1, 2, 1, largest + 1)
        rocflash.attention(wide, wide, wide)


def test_threads() -> None:
    code = "import torch, rocflash; q = torch.randn(1, 9, 2, 16); rocflash.attention(q, q, q)"
    assert python("-c", code, ROCFLASH_NUM_THREADS="1").returncode == 0


def test_missing_library_is_named() -> None:
    told = python("-c", "import rocflash; rocflash.info()", ROCFLASH_LIBRARY="/nowhere/lib.so")
    assert "cannot open /nowhere/lib.so, named by ROCFLASH_LIBRARY" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "rocflash.prove"),
        ("-m", "flash_attn_3.prove"),
        ("verify_flash_attn.py", "cpu", "--seq-len", "128"),
        ("benchmark_flash_attn.py", "cpu", "--seq-lens", "128", "--num-runs", "2"),
        ("examples/transformers_model.py",),
        ("examples/serve.py", "--cache", "float16", "--requests", "6"),
    ],
    ids=" ".join,
)
def test_programs(words: tuple[str, ...]) -> None:
    done = python(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize("file", ["test_fa3.py", "prove_fa3_mi300x.py"])
def test_proofs_print_the_lines_people_look_for(file: str) -> None:
    done = python(file)
    assert done.returncode == 0, done.stdout + done.stderr
    titles = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert titles[:4] == ["torch version", "device name", "device gfx arch", "flash-attn backend symbol"]
    assert any(title.startswith("FA3 forward success") for title in titles)


@pytest.mark.parametrize("words", [("test_fa3.py",), ("-m", "rocflash.prove"), ("verify_flash_attn.py",)], ids=" ".join)
def test_programs_refuse_a_device_that_is_not_there(words: tuple[str, ...]) -> None:
    done = python(*words, "abacus")
    assert done.returncode == 2 and "device: 'abacus'" in done.stderr and "Traceback" not in done.stderr


def test_proofs_without_the_packages_say_what_to_do() -> None:
    done = python("-S", "test_fa3.py", PYTHONPATH="")
    assert done.returncode == 1 and "docs/install.md" in done.stderr
