"""`pip install .` from a clone: one wheel with all three distributions, installed in both ways, and what it reads and refuses."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import backend
import pytest
import wheel
from conftest import ROOT, Run
from test_wheels import check_record, names, pure_names, rocflash_names

NAMES = {"rocflash": "0.1.0", "flash-attn": "2.8.3", "flash-attn-3": "3.0.0"}
USE = """
import importlib.metadata as metadata, numpy
import flash_attention_amd, flash_attn, flash_attn_interface, rocflash
for name in ("rocflash", "flash-attn", "flash-attn-3"):
    print(name, metadata.version(name))
tops = metadata.packages_distributions()
print(tops["flash_attn"], tops["flash_attention_amd"], tops["flash_attn_interface"], tops["rocflash"])
x = numpy.ones((1, 3, 2, 8), "float32")
assert (rocflash.attention(x, x, x) == 1).all()
print(rocflash.__file__)
"""


@pytest.fixture
def unlinked() -> Iterator[None]:
    """Takes away what an editable installation links into the tree, and puts back what was there."""
    package = ROOT / "python" / "rocflash"
    links = {package / name: None for name in ("lib/librocflash.so.0", "bin/rocflash")}
    before = {path: path.readlink() for path in links if path.is_symlink()}
    yield
    for path in links:
        path.unlink(missing_ok=True)
        if path in before:
            path.symlink_to(before[path])
        elif path.parent.is_dir():
            path.parent.rmdir()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An empty virtual environment that borrows torch and numpy, so that pip finds them installed."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    version = f"python3.{sys.version_info[1]}"
    mine = next(path for path in sys.path if path.endswith(f"{version}/site-packages"))
    (folder / "lib" / version / "site-packages" / "borrowed.pth").write_text(mine)
    return folder


def pip(run: Run, environment: Path, *words: str | Path, **variables: str) -> str:
    told = run(
        sys.executable, "-m", "pip", "--python", environment / "bin/python", *words, **variables
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout + told.stderr


@pytest.mark.usefixtures("unlinked")
@pytest.mark.parametrize("how", [[], ["--editable"]], ids=["installed", "editable"])
def test_installed_and_removed(
    run: Run, build: Path, built_archs: str, environment: Path, how: list[str]
) -> None:
    """Without build isolation, as the guides type it; nothing is compiled, since the build directory has it."""
    if not built_archs:
        pytest.skip("this build is for the CPU alone by default, and would be configured anew")
    told = pip(
        run, environment, "install", "-v", "--no-index", "--no-build-isolation", *how, ROOT,
        GPU_ARCHS=built_archs, ROCFLASH_BUILD=str(build), MAX_JOBS="1",
    )  # fmt: skip
    assert f"rocflash: GPUs      {built_archs.replace(';', ' ')}" in told
    assert "rocflash: jobs      1 (MAX_JOBS)" in told
    used = subprocess.run(
        [environment / "bin/python", "-I", "-c", USE], capture_output=True, text=True
    )
    assert used.returncode == 0, used.stderr
    *versions, tops, place = used.stdout.splitlines()
    assert versions == [f"{name} {version}" for name, version in NAMES.items()]
    assert tops == "['flash-attn'] ['flash-attn'] ['flash-attn-3'] ['rocflash']"
    home = ROOT / "python" if how else environment
    assert place.startswith(str(home)), place
    assert (environment / "bin/rocflash").exists()

    pip(run, environment, "uninstall", "--yes", "rocflash")
    (site,) = (environment / "lib").glob("python3*/site-packages")
    assert [path.name for path in site.iterdir()] == ["borrowed.pth"]


def test_one_wheel_has_all(build: Path, tmp_path: Path) -> None:
    path = wheel.write_clone(tmp_path, "py3-none-linux_x86_64", wheel.compiled_files(build))
    check_record(path)
    modules = {name for name in names(path) if "-info/" not in name}
    assert modules == rocflash_names() | pure_names("flash-attn") | pure_names("flash-attn-3")
    with zipfile.ZipFile(path) as archive:
        told = archive.read("rocflash-0.1.0.dist-info/METADATA").decode()
    assert "Requires-Dist: torch>=2.2\n" in told and "Requires-Dist: einops\n" in told


def test_metadata_comes_before_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE")
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    needs = importlib.metadata.Distribution.at(tmp_path / name).requires
    assert needs[:3] == ["torch>=2.2", "einops", "triton>=3.5.1"]
    assert all("extra ==" in need for need in needs[3:]) and len(needs) == 6


def test_tools_are_asked_for_where_they_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = backend.get_requires_for_build_wheel()
    assert not any(name.startswith("cmake") for name in asked), "it is here: this was built by it"
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = backend.get_requires_for_build_wheel()
    assert asked[:2] == ["cmake>=3.25", "ninja"]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GPU_ARCHS", "gfx1", "rocflash: GPU_ARCHS: gfx1; there are kernels for gfx90a"),
        ("MAX_JOBS", "many", "rocflash: MAX_JOBS: 'many'; it must be"),
        (
            "FLASH_ATTENTION_SKIP_CUDA_BUILD",
            "maybe",
            "rocflash: FLASH_ATTENTION_SKIP_CUDA_BUILD: 'maybe'; it must be true or false",
        ),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.delenv("PYTORCH_ROCM_ARCH", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as refusal:
        backend.build_wheel(str(tmp_path))
    assert str(refusal.value).startswith(message)


def test_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--config-settings fast: there are none"):
        backend.build_wheel(str(tmp_path), {"fast": "yes"})


def test_skipping_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE")
    assert backend.choose_archs().option == "none"


def test_sdist(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as archive:
        inside = set(archive.getnames())
    assert {"rocflash-0.1.0/PKG-INFO", "rocflash-0.1.0/packaging/backend.py"} <= inside
