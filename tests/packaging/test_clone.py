"""`pip install .` in a clone: the wheel, normal and editable installation, settings."""

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
from conftest import ROOT, VERSION, Run
from test_wheels import check_record, names, pure_names, rocflash_names

NAMES = {
    "rocflash": VERSION,
    "flash-attn": "2.8.3",
    "flash-attn-3": "3.0.0",
    "flash-attn-4": "4.0.0",
}
USE = """
import importlib.metadata as metadata, numpy
import flash_attention_amd, flash_attn, flash_attn.cute, flash_attn_interface, rocflash
for name in ("rocflash", "flash-attn", "flash-attn-3", "flash-attn-4"):
    print(name, metadata.version(name))
tops = metadata.packages_distributions()
packages = ("flash_attn", "flash_attention_amd", "flash_attn_interface", "rocflash")
print(*(sorted(set(tops[name])) for name in packages))
x = numpy.ones((1, 3, 2, 8), "float32")
assert (rocflash.attention(x, x, x) == 1).all()
print(rocflash.__file__)
"""


@pytest.fixture
def unlinked() -> Iterator[None]:
    """Removes the links of an editable installation after the test, and restores earlier ones."""
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
    """An empty virtual environment that imports this one's torch and numpy."""
    directory = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    version = f"python3.{sys.version_info[1]}"
    own_site = next(path for path in sys.path if path.endswith(f"{version}/site-packages"))
    (directory / "lib" / version / "site-packages" / "borrowed.pth").write_text(own_site)
    return directory


def pip(run: Run, environment: Path, *arguments: str | Path, **variables: str) -> str:
    result = run(
        sys.executable, "-m", "pip", "--python", environment / "bin/python", *arguments, **variables
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.usefixtures("unlinked")
@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["installed", "editable"])
def test_installed_and_removed(
    run: Run, build: Path, built_archs: str, environment: Path, options: list[str]
) -> None:
    """Installs without build isolation; nothing is compiled, because the build is reused."""
    if not built_archs:
        pytest.skip("this build is CPU only by default and would be reconfigured")
    log = pip(
        run, environment, "install", "-v", "--no-index", "--no-build-isolation", *options, ROOT,
        GPU_ARCHS=built_archs, ROCFLASH_BUILD=str(build), MAX_JOBS="1",
    )  # fmt: skip
    assert f"rocflash: GPUs      {built_archs.replace(';', ' ')}" in log
    assert "rocflash: jobs      1 (MAX_JOBS)" in log
    used = subprocess.run(
        [environment / "bin/python", "-I", "-c", USE], capture_output=True, text=True
    )
    assert used.returncode == 0, used.stderr
    *versions, tops, path = used.stdout.splitlines()
    assert versions == [f"{name} {version}" for name, version in NAMES.items()]
    assert tops == ("['flash-attn', 'flash-attn-4'] ['flash-attn'] ['flash-attn-3'] ['rocflash']")
    home = ROOT / "python" if options else environment
    assert path.startswith(str(home)), path
    assert (environment / "bin/rocflash").exists()

    pip(run, environment, "uninstall", "--yes", "rocflash")
    (site,) = (environment / "lib").glob("python3*/site-packages")
    assert [path.name for path in site.iterdir()] == ["borrowed.pth"]


def test_one_wheel_has_all_distributions(build: Path, tmp_path: Path) -> None:
    path = wheel.write_clone(tmp_path, "py3-none-linux_x86_64", wheel.compiled_files(build))
    check_record(path)
    modules = {name for name in names(path) if "-info/" not in name}
    pure = (pure_names(name) for name in ("flash-attn", "flash-attn-3", "flash-attn-4"))
    assert modules == rocflash_names().union(*pure)
    with zipfile.ZipFile(path) as archive:
        metadata = archive.read(f"rocflash-{VERSION}.dist-info/METADATA").decode()
    assert "Requires-Dist: torch>=2.2\n" in metadata and "Requires-Dist: einops\n" in metadata


def test_metadata_needs_no_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE")
    name = backend.prepare_metadata_for_build_wheel(str(tmp_path))
    needs = importlib.metadata.Distribution.at(tmp_path / name).requires
    assert needs[:3] == ["torch>=2.2", "einops", "triton>=3.5.1"]
    assert all("extra ==" in need for need in needs[3:]) and len(needs) == 7


def test_missing_tools_are_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    required = backend.get_requires_for_build_wheel()
    assert not any(name.startswith("cmake") for name in required), (
        "cmake is installed: it built this"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    required = backend.get_requires_for_build_wheel()
    assert required[:2] == ["cmake>=3.25", "ninja"]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GPU_ARCHS", "gfx1", "rocflash: GPU_ARCHS: gfx1; "),
        ("MAX_JOBS", "many", "rocflash: MAX_JOBS is 'many'; it must be"),
        (
            "FLASH_ATTENTION_SKIP_CUDA_BUILD",
            "maybe",
            "rocflash: FLASH_ATTENTION_SKIP_CUDA_BUILD is 'maybe'; it must be true or false",
        ),
    ],
)
def test_invalid_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.delenv("PYTORCH_ROCM_ARCH", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as error:
        backend.build_wheel(str(tmp_path))
    assert str(error.value).startswith(message)


def test_config_settings_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--config-settings fast: no setting is supported"):
        backend.build_wheel(str(tmp_path), {"fast": "yes"})


def test_skipping_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_SKIP_CUDA_BUILD", "TRUE")
    assert backend.select_archs().option == "none"


def test_sdist(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as archive:
        inside = set(archive.getnames())
    assert {f"rocflash-{VERSION}/PKG-INFO", f"rocflash-{VERSION}/packaging/backend.py"} <= inside


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("install", "install ."),
        ("develop", "install -e ."),
        ("bdist_wheel", "wheel --no-deps --wheel-dir dist ."),
    ],
)
def test_setup_py_runs_pip(run: Run, tmp_path: Path, word: str, command: str) -> None:
    """As users of other builds of flash attention type it, with GPU_ARCHS for the backend."""
    (tmp_path / "pip.py").write_text(
        "import os, sys; print(sys.argv[1:], os.environ['GPU_ARCHS'], os.getcwd())"
    )
    done = run(sys.executable, "setup.py", word, GPU_ARCHS="gfx942", PYTHONPATH=str(tmp_path))
    assert done.stdout.splitlines() == [
        f"python -m pip {command}",
        f"{command.split()} gfx942 {ROOT}",
    ]


@pytest.mark.parametrize("words", [(), ("test",), ("install", "--user")])
def test_setup_py_names_its_commands(run: Run, words: tuple[str, ...]) -> None:
    done = run(sys.executable, "setup.py", *words)
    assert done.returncode == 1 and "install | develop | bdist_wheel" in done.stderr
