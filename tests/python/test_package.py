"""The package: import without torch, backend selection, reports, self-tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from child import python

import rocflash

ROOT = Path(__file__).parents[2]


def test_import_needs_no_torch() -> None:
    code = (
        "import sys, rocflash; rocflash.info(); assert 'torch' not in sys.modules and 'numpy' not "
        "in sys.modules"
    )
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
    with pytest.raises(ValueError, match="^backend is 'quick'; allowed are auto"):
        rocflash.attention(q, q, q, backend="quick")
    code = "import rocflash; print(rocflash.backend(), rocflash.info()['why'])"
    arguments = python("-c", code, ROCFLASH_BACKEND="standard").stdout
    assert arguments.startswith("standard chosen by ROCFLASH_BACKEND=standard")
    refused = python("-c", code, ROCFLASH_BACKEND="quick")
    assert "ROCFLASH_BACKEND is 'quick'; allowed are auto" in refused.stderr


def test_info_reports() -> None:
    arguments = python(
        "-c", "import rocflash; print(rocflash.info())", FLASH_ATTENTION_TRITON_AMD_ENABLE="TRUE"
    )
    chosen = "backend: triton (chosen by FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE"
    for words in (
        f"rocflash {rocflash.__version__}",
        chosen,
        "backend symbol: ",
        "device: cpu:0",
        "driver: hip",
        "'TRUE'",
    ):
        assert words in arguments.stdout, arguments.stdout + arguments.stderr


def test_info_lists_capabilities() -> None:
    """Capabilities by queries agree with calls."""
    (cpu,) = (device for device in rocflash.devices() if device["type"] == "cpu")
    assert set(cpu["computes"]) == {"forward", "backward", "decode"}
    largest = cpu["computes"]["backward"]["f32"]
    assert f"backward: head dimensions of f16 bf16 f32 to {largest}" in str(rocflash.info())
    q = torch.randn(1, 2, 1, largest, requires_grad=True)
    rocflash.attention(q, q, q).sum().backward()
    with pytest.raises(rocflash.Error):
        wide = torch.randn(1, 2, 1, largest + 1)
        rocflash.attention(wide, wide, wide)


def test_threads() -> None:
    code = "import torch, rocflash; q = torch.randn(1, 9, 2, 16); rocflash.attention(q, q, q)"
    assert python("-c", code, ROCFLASH_NUM_THREADS="1").returncode == 0


def test_missing_library_is_named() -> None:
    done = python("-c", "import rocflash; rocflash.info()", ROCFLASH_LIBRARY="/nowhere/lib.so")
    assert "cannot open /nowhere/lib.so, named by ROCFLASH_LIBRARY" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "rocflash.self_test"),
        ("-m", "flash_attn_3.self_test"),
        ("-m", "rocflash.prove"),
        ("-m", "flash_attn_3.prove"),
        ("verify_flash_attn.py", "cpu", "--seq-len", "128"),
        ("benchmark_flash_attn.py", "cpu", "--seq-lens", "128", "--num-runs", "2"),
    ],
    ids=" ".join,
)
def test_programs(words: tuple[str, ...]) -> None:
    done = python(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize("file", ["test_fa3.py", "prove_fa3_mi300x.py"])
def test_self_tests_print_the_lines_that_users_search(file: str) -> None:
    done = python(file, "--any-device" if "prove" in file else "cpu", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    titles = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert titles[:4] == [
        "torch version",
        "device name",
        "device gfx arch",
        "flash-attn backend symbol",
    ]
    assert any(title.startswith("FA3 forward success") for title in titles)


@pytest.mark.parametrize(
    "words", [("test_fa3.py",), ("-m", "rocflash.prove"), ("verify_flash_attn.py",)], ids=" ".join
)
def test_programs_reject_an_unknown_device(words: tuple[str, ...]) -> None:
    done = python(*words, "abacus")
    assert (
        done.returncode == 2
        and "device is 'abacus'" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_an_mi300x_is_required_unless_any_device_is_accepted() -> None:
    done = python("prove_fa3_mi300x.py", "cpu")
    assert done.returncode == 1 and "FA3 backward success on cpu" in done.stdout
    assert "NOT an MI300X" in done.stdout and "--any-device" in done.stdout


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("hip:0", "is not ROCm's"),
        ("rocm:0", "is not ROCm's"),
        ("cuda:77", "torch says"),
        ("hip:-1", "it must be auto, cpu, hip:N (or rocm:N), cuda:N or sim:ARCH"),
        ("sim:abacus", "it must be auto, cpu"),
    ],
)
def test_devices_that_are_not_available_are_named(device: str, why: str) -> None:
    from rocflash import Error
    from rocflash.self_test import resolve_device

    if device in ("hip:0", "rocm:0") and torch.version.hip:
        pytest.skip("this torch is ROCm's")
    with pytest.raises(Error, match=re.escape(f"device is {device!r}")) as refusal:
        resolve_device(device)
    assert why in str(refusal.value)


def test_auto_is_the_default_device() -> None:
    """A GPU where torch has one; without one the CPU, with a warning if there is a GPU's device
    file.
    """
    from rocflash.self_test import resolve_device

    assert (
        resolve_device()
        == resolve_device("auto")
        == ("cuda" if torch.cuda.is_available() else "cpu")
    )


def test_two_different_devices_are_rejected() -> None:
    done = python("test_fa3.py", "cpu", "--device", "auto")
    assert (
        done.returncode == 2
        and "--device is 'auto', but the device before it is 'cpu'" in done.stderr
    )


def test_self_tests_without_the_packages_have_instructions() -> None:
    done = python("-S", "test_fa3.py", PYTHONPATH="")
    assert done.returncode == 1 and "docs/install.md" in done.stderr


def test_former_names() -> None:
    """Names of earlier versions are aliases."""
    from flash_attn_3 import prove as prove_of_3
    from flash_attn_3 import self_test as self_test_of_3
    from rocflash import dropin, prove, self_test

    assert prove.prove is self_test.self_test and prove.chosen_device is self_test.chosen_device
    assert prove_of_3.prove is self_test_of_3.self_test and prove_of_3.check is self_test_of_3.check
    assert dropin.whole is dropin.as_int
