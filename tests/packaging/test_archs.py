"""The selection of GPU architectures: environment variables, faked sysfs trees and rocminfo,
all.
"""

from __future__ import annotations

from pathlib import Path

import archs
import pytest

NOWHERE = {
    "ROCFLASH_SYSFS": "/nonexistent",
    "ROCFLASH_ROCMINFO": "/nonexistent",
    "ROCFLASH_PROC": "/nonexistent",
}


def sysfs(directory: Path, *versions: int) -> str:
    """A KFD topology: one node per processor, CPUs with version 0."""
    for index, version in enumerate(versions):
        node = directory / "class/kfd/kfd/topology/nodes" / str(index)
        node.mkdir(parents=True)
        (node / "properties").write_text(
            f"cpu_cores_count 8\nsimd_count 0\ngfx_target_version {version}\ndrm_render_minor 128\n"
        )
    return str(directory)


def rocminfo(directory: Path, *names: str, status: int = 0) -> str:
    """A stub of rocminfo: the CPU's agent first, ISA names with their triple."""
    agents = "\n".join(
        f"  Name:                    {n}\n      Name:                    "
        f"amdgcn-amd-amdhsa--{n}:xnack-"
        for n in names
    )
    path = directory / "rocminfo"
    path.write_text(
        "#!/bin/sh\ncat <<'END'\nAgent 1\n  Name:                    AMD EPYC "
        f"7763\n{agents}\nEND\nexit {status}\n"
    )
    path.chmod(0o755)
    return str(path)


def test_kernel_targets_are_the_builds() -> None:
    known = archs.kernel_targets()
    for name in (
        "gfx906",
        "gfx908",
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx1030",
        "gfx1100",
        "gfx1201",
        "sm_80",
    ):
        assert name in known


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (90008, "gfx908"),
    ],
)
def test_kfd_versions(tmp_path: Path, version: int, name: str) -> None:
    machine = {**NOWHERE, "ROCFLASH_SYSFS": sysfs(tmp_path, 0, version)}
    assert archs.gpus_here(machine) == {name: "kfd"}


def test_precedence(tmp_path: Path) -> None:
    machine = {
        "ROCFLASH_SYSFS": sysfs(tmp_path, 0, 110000, 110000),
        "ROCFLASH_ROCMINFO": rocminfo(tmp_path, "gfx90a"),
    }
    requested = {"PYTORCH_ROCM_ARCH": "gfx942", "GPU_ARCHS": "gfx1030", **machine}
    assert archs.choose(requested) == archs.Choice(("gfx942",), "PYTORCH_ROCM_ARCH")
    del requested["PYTORCH_ROCM_ARCH"]
    assert archs.choose(requested) == archs.Choice(("gfx1030",), "GPU_ARCHS")
    assert archs.choose(machine) == archs.Choice(("gfx1100",), "found by the kernel's KFD nodes")
    machine["ROCFLASH_SYSFS"] = "/nonexistent"
    assert archs.choose(machine) == archs.Choice(("gfx90a",), "found by rocminfo")
    assert archs.choose(NOWHERE) == archs.Choice(("all",), "no GPU requested and no AMD GPU found")


def test_native_means_the_gpus_found(tmp_path: Path) -> None:
    machine = {
        "GPU_ARCHS": "native",
        "ROCFLASH_SYSFS": sysfs(tmp_path, 0, 120001),
        "ROCFLASH_ROCMINFO": "/nonexistent",
    }
    assert archs.choose(machine).names == ("gfx1201",)
    for choose in (archs.choose, archs.choose_here):
        with pytest.raises(archs.WrongArch, match="PYTORCH_ROCM_ARCH: native; this machine has no"):
            choose({**NOWHERE, "PYTORCH_ROCM_ARCH": "native"})


def test_nvidia_architectures(tmp_path: Path) -> None:
    with pytest.raises(archs.WrongArch, match="sm_80 is an NVIDIA architecture; PYTORCH_ROCM_ARCH"):
        archs.choose({"PYTORCH_ROCM_ARCH": "gfx942;sm_80", **NOWHERE})
    assert archs.choose({"GPU_ARCHS": "gfx942;sm_80", **NOWHERE}).option == "gfx942;sm_80"
    with pytest.raises(archs.WrongArch, match="at least one AMD"):
        archs.choose({"GPU_ARCHS": "sm_80", **NOWHERE})
    assert archs.choose_here({"GPU_ARCHS": "sm_80", **NOWHERE}).option == "sm_80"


@pytest.mark.parametrize(
    "text",
    [
        "gfx1100;gfx942",
        "gfx942,gfx1100",
        " gfx942 gfx1100;",
        "gfx942:sramecc+:xnack-;gfx1100;gfx942",
    ],
)
def test_separators_features_and_order(text: str) -> None:
    assert archs.choose({"PYTORCH_ROCM_ARCH": text, **NOWHERE}).option == "gfx942;gfx1100"


def test_architectures_without_kernels_are_skipped() -> None:
    choice = archs.choose({"PYTORCH_ROCM_ARCH": "gfx900;gfx909;gfx90a", **NOWHERE})
    assert choice.names == ("gfx90a",)
    assert choice.notes == (
        "PYTORCH_ROCM_ARCH names gfx900, gfx909: there are no kernels for it, left out",
    )
    with pytest.raises(archs.WrongArch, match="nothing remains; there are kernels for gfx90a"):
        archs.choose({"PYTORCH_ROCM_ARCH": "gfx909", **NOWHERE})


@pytest.mark.parametrize("name", ["gfx9999", "mi300x", "gfx90A", "gfx11-generic"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(
        archs.WrongArch, match=f"GPU_ARCHS: {name}; there are kernels for gfx90a, gfx942"
    ):
        archs.choose({"GPU_ARCHS": f"gfx942;{name}", **NOWHERE})


def test_a_found_gpu_without_kernels(tmp_path: Path) -> None:
    choice = archs.choose({"ROCFLASH_SYSFS": sysfs(tmp_path, 0, 90009)})
    assert choice.names == ("all",) and "gfx909" in choice.notes[0]


def test_a_failing_rocminfo(tmp_path: Path) -> None:
    machine = {"ROCFLASH_SYSFS": "/nonexistent", "ROCFLASH_ROCMINFO": rocminfo(tmp_path, status=1)}
    assert archs.choose(machine).names == ("all",)


def test_default_of_a_clone(tmp_path: Path) -> None:
    """A clone also builds for NVIDIA GPUs; without any GPU it builds for common ones."""
    assert archs.choose_here(NOWHERE).names == archs.COMMON
    assert set(archs.COMMON) < set(archs.kernel_targets())
    assert archs.choose_here({**NOWHERE, "GPU_ARCHS": "none"}).option == "none"
    (tmp_path / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    nvidia = {**NOWHERE, "ROCFLASH_PROC": str(tmp_path)}
    assert archs.choose_here(nvidia).names[0] == "sm_80"
    both = {**nvidia, "ROCFLASH_SYSFS": sysfs(tmp_path / "sys", 0, 90402)}
    assert archs.choose_here(both).names[:2] == ("gfx942", "sm_80")
    assert archs.choose_here({**both, "GPU_ARCHS": "gfx1100"}).names == ("gfx1100",)
    assert archs.choose(nvidia).names == ("all",), "a wheel is built for all"
