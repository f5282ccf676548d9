"""`rocflash doctor`, Python's findings: every line against made-up Pythons; the command, as run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from child import python

from rocflash import doctor
from rocflash.doctor import Finding, Owner, Torch, examine

OURS = Owner("flash-attn", "2.8.3", ours=True)
UPSTREAM = Owner("flash-attn", "2.8.1", ours=False)
MI300X = ("AMD Instinct MI300X", "gfx942")


def working(**changes: Any) -> doctor.Python:
    """A Python of a machine with an MI300X in which all is well; tests break it."""
    p = doctor.Python(
        package_version="1.2.3", library="/lib/librocflash.so.0", library_version="1.2.3"
    )
    p.torch = Torch("2.9.0+rocm6.4", hip="6.4.43484", devices=[MI300X], archs=["gfx90a", "gfx942"])
    p.origins = {"flash_attn": "/site/flash_attn", "flash_attn_3": "/site/flash_attn_3"}
    p.ours = dict.fromkeys(p.origins, True)
    p.owners = {name: [OURS] for name in p.origins}
    for name, value in changes.items():
        setattr(p, name, value)
    return p


def finding(id: str, p: doctor.Python, cards: set[str]) -> Finding:
    (found,) = (x for x in examine(p, cards) if x.id == id)
    return found


def test_a_working_python_has_no_problem() -> None:
    found = examine(working(), {"amd"})
    assert {x.severity for x in found} == {"ok"} and not any(x.advice for x in found)
    assert (
        finding("torch.gpu", working(), {"amd"}).what == "torch finds AMD Instinct MI300X (gfx942)"
    )


CPU_TORCH = Torch("2.9.0+cpu")
CUDA_TORCH = Torch("2.9.0+cu128", cuda="12.8", problem="Found no NVIDIA driver on your system")
BLIND = Torch("2.9.0+rocm6.4", hip="6.4.43484", problem="No HIP GPUs are available")
OLD = Torch("2.9.0+rocm6.4", hip="6.4.43484", devices=[("RX 7600", "gfx1102")], archs=["gfx1100"])
AMD, NVIDIA, NONE = {"amd"}, {"nvidia"}, set()


@pytest.mark.parametrize(
    ("id", "changes", "cards", "severity", "what", "advice"),
    [
        ("python.library", {"library_problem": "cannot open x"}, AMD, "error", "cannot open x",
        "rocflash"),
        ("python.library", {"library_problem": "cannot open x", "library_named": True}, AMD,
        "error", "cannot", "unset"),
        ("python.library", {"library_version": "1.2.2"}, AMD, "error", "is 1.2.2",
        "reinstall rocflash"),
        ("python.backend", {"backend_problem": "ROCFLASH_BACKEND is 'x'"}, AMD, "error", "is 'x'",
        "unset"),
        ("python.backend", {"backend": "triton"}, AMD, "note", "the backend is triton", ""),
        ("torch.import", {"torch": None}, AMD, "note", "not installed", "pip install torch"),
        ("torch.import", {"torch": None, "torch_problem": "no libc10"}, AMD, "error", "no libc10",
        "reinstall"),
        ("torch.build", {"torch": CPU_TORCH}, AMD, "error",
        "the CPU alone, but this machine has a GPU of AMD", "rocm"),
        ("torch.build", {"torch": CPU_TORCH}, NONE, "ok", "built for the CPU alone", ""),
        ("torch.build", {"torch": CUDA_TORCH}, AMD, "error", "CUDA 12.8, but",
        "download.pytorch.org/whl/rocm"),
        ("torch.build", {"torch": CPU_TORCH}, NVIDIA, "error", "a GPU of NVIDIA", "built for CUDA"),
        ("torch.build", {"torch": CUDA_TORCH}, AMD | NVIDIA, "ok", "CUDA 12.8", ""),
        ("torch.gpu", {"torch": BLIND}, AMD, "error", "no GPU: No HIP GPUs are available",
        "container"),
        ("torch.gpu", {"torch": CUDA_TORCH}, NVIDIA, "error", "no GPU: Found no NVIDIA driver",
        "container"),
        ("torch.arch", {"torch": OLD}, AMD, "warning", "gfx1102; it has gfx1100", "nightly"),
        ("flash_attn.owner", {"origins": {}}, AMD, "note", "flash_attn is not installed",
        "flash-attn"),
        ("flash_attn_3.owner", {"origins": {}}, AMD, "note", "flash_attn_3 is not installed",
        "flash-attn-3"),
    ],
)  # fmt: skip
def test_each_finding(
    id: str, changes: dict[str, Any], cards: set[str], severity: str, what: str, advice: str
) -> None:
    found = finding(id, working(**changes), cards)
    assert found.severity == severity and what in found.what, found
    assert advice in found.advice and bool(found.advice) == bool(advice), found


def test_owners_of_flash_attn() -> None:
    def owned(*owners: Owner, ours: bool) -> Finding:
        p = working(owners={"flash_attn": list(owners)})
        p.ours["flash_attn"] = ours
        return finding("flash_attn.owner", p, AMD)

    upstream = owned(UPSTREAM, ours=False)
    assert upstream.severity == "warning" and "that of flash-attn 2.8.1" in upstream.what
    assert "pip uninstall flash-attn" in upstream.advice
    both = owned(OURS, UPSTREAM, ours=True)
    assert both.severity == "error" and "both install flash_attn" in both.what
    hidden = owned(OURS, ours=False)
    assert hidden.severity == "warning" and "hides rocflash's" in hidden.what
    stranger = owned(ours=False)
    assert stranger.severity == "warning" and "that of /site/flash_attn" in stranger.what
    assert owned(ours=True).severity == "ok"  # a clone on PYTHONPATH


def test_vendors_come_from_the_program() -> None:
    def report(severity: str) -> dict[str, Any]:
        return {"findings": [{"id": "amd.card", "severity": severity}]}

    assert doctor.cards_of(report("ok")) == {"amd"}
    assert doctor.cards_of(report("note")) == doctor.cards_of({}) == set()


def package(directory: Path, name: str, text: str, distribution: str = "") -> None:
    (directory / name).mkdir()
    (directory / name / "__init__.py").write_text(text)
    if distribution:
        info = directory / f"{distribution}-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.9\n"
        )
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n")


def test_the_command_reports_what_is_installed(tmp_path: Path) -> None:
    """A foreign flash_attn in front and a torch that fails on import; text, JSON and exit
    status.
    """
    package(tmp_path, "flash_attn", "", "flash-attn")
    package(
        tmp_path, "torch", "raise ImportError('libamdhip64.so.6: cannot open shared object file')"
    )
    import rocflash

    path = f"{tmp_path}:{Path(rocflash.__file__).parents[1]}"
    done = python("-m", "rocflash", "doctor", "--json", "-", PYTHONPATH=path)
    report = json.loads(done.stdout)
    found = {x["id"]: x for x in report["findings"]}
    assert found["flash_attn.owner"]["severity"] == "warning"
    assert "flash-attn 9.9" in found["flash_attn.owner"]["what"]
    assert "libamdhip64.so.6" in found["torch.import"]["what"]
    assert found["torch.import"]["severity"] == "error"
    assert done.returncode == 1 and report["errors"] >= 1
    assert "torch cannot be imported" in done.stderr  # the text, as with the program


def test_python_without_torch(tmp_path: Path) -> None:
    """Exit status 0: nothing is wrong with the Python."""
    done = python("-m", "rocflash", "doctor", "--json", str(tmp_path / "found.json"))
    report = json.loads((tmp_path / "found.json").read_text())
    ids = [x["id"] for x in report["findings"]]
    assert {"python.version", "python.library", "python.backend", "flash_attn.owner"} <= set(ids)
    assert "Python " in done.stdout and f"{report['errors']} error" in done.stdout
    assert done.returncode == (1 if report["errors"] else 0)
