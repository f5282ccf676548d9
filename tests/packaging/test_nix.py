"""The Nix flake, evaluated by Nix over a stand-in for nixpkgs; phases of its derivations run with the real tools.

nixpkgs itself cannot be reached from everywhere, and building it all would take hours; docs/install.md says what that leaves
open.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, source_files

pytestmark = pytest.mark.skipif(
    not shutil.which("nix"), reason="nix is not there (Debian: nix-bin)"
)
SYSTEM = "x86_64-linux"


class Nix:
    """nix with a store and a home of its own, over a copy of the repository's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        for name in source_files():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.source / name)
        own = {
            "NIX_STORE_DIR": "store",
            "NIX_STATE_DIR": "var",
            "NIX_LOG_DIR": "log",
            "NIX_CONF_DIR": "conf",
            "HOME": "home",
            "XDG_CACHE_HOME": "cache",
            "NIX_LOCALSTATE_DIR": "local",
        }
        self.environment = {
            **os.environ,
            **{name: str(folder / "nix" / place) for name, place in own.items()},
        }

    def __call__(
        self, *words: str, flake: Path | None = None, nixpkgs: str = "nixpkgs"
    ) -> subprocess.CompletedProcess[str]:
        options = [
            "--extra-experimental-features",
            "nix-command flakes",
            "--option",
            "build-users-group",
            "",
            "--offline",
        ]
        inputs = [
            "--override-input",
            nixpkgs,
            f"path:{ROOT}/tests/packaging/nixpkgs",
            "--no-write-lock-file",
        ]
        if flake is not None:
            inputs += ["--override-input", "rocflash", f"path:{self.source}"]
        return subprocess.run(
            ["nix", *words, *options, *inputs],
            cwd=flake or self.source,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def args(self, attribute: str, **more: Any) -> tuple[dict[str, Any], set[str]]:
        """The arguments of a derivation, and the packages that were asked for on the way."""
        where = more.get("flake") or self.source
        done = self("eval", "--json", f"path:{where}#{attribute}.args", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), set(
            re.findall(r"^trace: asked for (\S+)", done.stderr, re.MULTILINE)
        )


@pytest.fixture(scope="module")
def nix(tmp_path_factory: pytest.TempPathFactory) -> Nix:
    return Nix(tmp_path_factory.mktemp("nix"))


def test_outputs(nix: Nix) -> None:
    done = nix("flake", "show", "--json", f"path:{nix.source}")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert set(shown) == {"packages", "devShells", "overlays", "checks"}
    assert set(shown["packages"][SYSTEM]) == {"default", "library", "flash-attn-3"}
    assert set(shown["checks"][SYSTEM]) == {"verify", "python"}
    assert list(shown["devShells"][SYSTEM]) == ["default"] and list(shown["overlays"]) == [
        "default"
    ]


def test_library(nix: Nix) -> None:
    args, asked = nix.args(f"packages.{SYSTEM}.library")
    assert asked == {
        "cli11",
        "cmake",
        "dlpack",
        "fmt",
        "ninja",
        "nlohmann_json",
        "zstd",
        "bash",
        "llvmPackages_22.clang-unwrapped",
        "llvmPackages_22.lld",
        "zstd.override{enableStatic}",
    }
    assert args["version"] == "0.1.0" and "-DROCFLASH_GPU_ARCHS=all" in args["cmakeFlags"]
    assert args["doInstallCheck"] and "rocflash verify" in args["installCheckPhase"]


def real(words: str) -> str:
    """The stand-in's paths as this machine's tools."""
    tools = {
        "llvmPackages_22.clang-unwrapped": "clang++-22",
        "llvmPackages_22.lld": "ld.lld-22",
        "bash": "bash",
    }
    for name, tool in tools.items():
        words = re.sub(rf"/asked/{re.escape(name)}/bin/[\w.+]+", shutil.which(tool) or tool, words)
    assert "/asked/" not in words, words
    return words


@pytest.mark.skipif(not shutil.which("clang++-22"), reason="clang 22 is not there")
def test_library_configures(nix: Nix, tmp_path: Path) -> None:
    """The flags that the derivation gives CMake are ones that it knows and that lead to a build with kernels."""
    args, _ = nix.args(f"packages.{SYSTEM}.library")
    flags = [real(flag) for flag in args["cmakeFlags"]]
    done = subprocess.run(
        [
            "cmake",
            "-S",
            nix.source,
            "-B",
            tmp_path / "build",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_C_COMPILER=clang-22",
            "-DCMAKE_CXX_COMPILER=clang++-22",
            *flags,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "Kernels for gfx90a gfx942" in done.stdout and "not used by the project" not in done.stderr
    )


def test_python_package(nix: Nix, build: Path, tmp_path: Path) -> None:
    """The install phase, over the library installed where the derivation has it; then imports as users write them."""
    args, asked = nix.args(f"packages.{SYSTEM}.default")
    assert asked >= {"python3Packages.torch{rocmSupport}", "python3Packages.einops"}
    library = nix("eval", "--raw", f"path:{nix.source}#packages.{SYSTEM}.library")
    assert library.returncode == 0, library.stderr
    place = library.stdout.strip()
    assert place in args["installPhase"]
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cmake", "--install", build, "--prefix", place], check=True, stdout=subprocess.DEVNULL
    )
    out = tmp_path / "out"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e", "-c", "runHook() { :; }\n" + args["installPhase"]],
        cwd=nix.source,
        check=True,
        env={**os.environ, "out": str(out), "PATH": path},
    )
    fa3, _ = nix.args(f"packages.{SYSTEM}.flash-attn-3")
    assert any("rocflash-0.1.0" in name for name in fa3["dependencies"])
    subprocess.run(
        ["bash", "-e", "-c", "runHook() { :; }\n" + fa3["installPhase"]],
        cwd=nix.source,
        check=True,
        env={**os.environ, "out": str(out), "PATH": path},
    )
    wanted = args["pythonImportsCheck"] + fa3["pythonImportsCheck"]
    imports = "; ".join(f"import {name}" for name in wanted)
    code = f"{imports}; import importlib.metadata as m; print(m.version('flash-attn'), rocflash.info()['library'])"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROCFLASH_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(out / "lib/python3/site-packages")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "2.8.3",
        str(out / "lib/python3/site-packages/rocflash/lib/librocflash.so.0"),
    ]
    shutil.rmtree(place)


def test_shell(nix: Nix) -> None:
    args, asked = nix.args(f"devShells.{SYSTEM}.default")
    wanted = {
        "ROCM_PATH": "/asked/rocmPackages.clr",
        "HIP_PATH": "/asked/rocmPackages.clr",
        "BUILD_TARGET": "rocm",
        "FLASH_ATTENTION_TRITON_AMD_ENABLE": "false",
    }
    assert {name: args[name] for name in wanted} == wanted
    assert "export CC=clang CXX=clang++" in args["shellHook"]
    for name in (
        "cmake",
        "ninja",
        "gnumake",
        "git",
        "gtest",
        "dlpack",
        "cli11",
        "fmt",
        "nlohmann_json",
        "shellcheck",
        "llvmPackages_22.llvm",
    ):
        assert name in asked, f"make test needs {name}"


def test_shell_has_what_the_guide_lists(nix: Nix) -> None:
    """torch for ROCm, flash_attn and pip in one Python; the maths libraries."""
    args, asked = nix.args(f"devShells.{SYSTEM}.default")
    (python,) = (name for name in args["packages"] if "python3.withPackages" in name)
    for name in ("einops", "packaging", "pip", "psutil", "torch{rocmSupport}"):
        assert f"python3Packages.{name}" in python
    assert "rocflash-0.1.0" in python, "flash_attn is in that package"
    libraries = ["clr", "rocblas", "hipblas", "hipsparse", "rocsolver", "hipfft", "hiprand", "rccl", "rocthrust"]
    assert asked >= {f"rocmPackages.{name}" for name in libraries} | {"gcc13"}


def test_checks(nix: Nix) -> None:
    verify, _ = nix.args(f"checks.{SYSTEM}.verify")
    assert (
        "rocflash verify" in verify["script"] and "rocflash-0.1.0" in verify["nativeBuildInputs"][0]
    )
    python, _ = nix.args(f"checks.{SYSTEM}.python")
    assert "import flash_attn, flash_attn_2_cuda, rocflash" in python["script"]


def test_downstream_example(nix: Nix, build: Path, tmp_path: Path) -> None:
    """Someone else's flake, over the overlay; its C program is compiled and run with the library of this build."""
    example = nix.source / "nix" / "example"
    shell, _ = nix.args(f"devShells.{SYSTEM}.default", flake=example, nixpkgs="rocflash/nixpkgs")
    assert any("rocflash-0.1.0" in name for name in shell["packages"])
    args, asked = nix.args(f"packages.{SYSTEM}.default", flake=example, nixpkgs="rocflash/nixpkgs")
    assert "dlpack" in asked
    prefix = tmp_path / "prefix"
    subprocess.run(
        ["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL
    )
    work = tmp_path / "work"
    shutil.copytree(nix.source / "examples", work)
    environment = {
        **os.environ,
        "CC": "cc",
        "out": str(tmp_path / "out"),
        "CPATH": f"{prefix}/include",
        "LIBRARY_PATH": f"{prefix}/lib",
        "LD_LIBRARY_PATH": f"{prefix}/lib",
    }
    subprocess.run(
        ["bash", "-e", "-c", f"{args['buildPhase']}\n{args['installPhase']}"],
        cwd=work,
        env=environment,
        check=True,
    )
    told = subprocess.run(
        [tmp_path / "out/bin/attention"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rocflash 0.1.0" in told.stdout


def test_nothing_is_downloaded() -> None:
    """No fetcher anywhere: sources are these files, the rest is nixpkgs'."""
    for path in [ROOT / "flake.nix", *(ROOT / "nix").rglob("*.nix")]:
        assert "fetch" not in path.read_text()
