"""The Nix flake, evaluated over a stub of nixpkgs; its phases run with local tools.

nixpkgs may be unreachable, and building all of it would take hours. docs/install.md states what
remains untested.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, VERSION, source_files

pytestmark = pytest.mark.skipif(
    not shutil.which("nix"), reason="nix is not installed (Debian: nix-bin)"
)
SYSTEM = "x86_64-linux"


class Nix:
    """nix with a private store and home, over a copy of the repository's files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "source"
        for name in source_files():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.source / name)
        directories = {
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
            **{name: str(directory / "nix" / path) for name, path in directories.items()},
        }

    def __call__(
        self, *arguments: str, flake: Path | None = None, nixpkgs: str = "nixpkgs"
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
            ["nix", *arguments, *options, *inputs],
            cwd=flake or self.source,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def args(self, attribute: str, **more: Any) -> tuple[dict[str, Any], set[str]]:
        """The arguments of a derivation, and the packages that its evaluation requested."""
        where = more.get("flake") or self.source
        done = self("eval", "--json", f"path:{where}#{attribute}.args", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), set(
            re.findall(r"^trace: requested (\S+)", done.stderr, re.MULTILINE)
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


def test_inputs_are_locked(nix: Nix) -> None:
    """The lock is complete and belongs to flake.nix: Nix accepts it, and needs no network for
    that.
    """
    lock = json.loads((ROOT / "flake.lock").read_text())
    assert lock["version"] == 7 and lock["nodes"]["root"]["inputs"] == {"nixpkgs": "nixpkgs"}
    node = lock["nodes"]["nixpkgs"]
    original = "github:{owner}/{repo}/{ref}".format(**node["original"])
    assert f'inputs.nixpkgs.url = "{original}";' in (ROOT / "flake.nix").read_text()
    locked = node["locked"]
    assert re.fullmatch("[0-9a-f]{40}", locked["rev"]) and locked["type"] == "github"
    kind, _, digest = locked["narHash"].partition("-")
    assert kind == "sha256" and len(base64.b64decode(digest, validate=True)) == 32
    done = subprocess.run(
        [
            "nix",
            "flake",
            "metadata",
            "--json",
            "--no-update-lock-file",
            "--offline",
            "--extra-experimental-features",
            "nix-command flakes",
            f"path:{nix.source}",
        ],
        env=nix.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["locks"]["nodes"]["nixpkgs"]["locked"] == locked


def test_drivers_are_found_at_run_time(nix: Nix) -> None:
    """The library searches NixOS's drivers and, for ROCm, the HIP runtime; it opens both by
    name.
    """
    args, requested = nix.args(f"packages.{SYSTEM}.library")
    assert "/run/opengl-driver/lib:/requested/rocmPackages.clr/lib" in args["postFixup"]
    assert "rocmPackages.clr" in requested and "librocflash.so" in args["postFixup"]


def test_nixos_module(nix: Nix) -> None:
    """environment.systemPackages, as the guide's document has it."""
    example = nix.source / "nix" / "example"
    expression = (  # noqa: UP031 (full of braces)
        "module: let pkgs = import %s/tests/packaging/nixpkgs/default.nix"
        ' { system = "%s"; overlays = (module { inherit pkgs; }).nixpkgs.overlays; };'
        " found = module { inherit pkgs; }; in map (x: "
        '"${x}") found.environment.systemPackages ++ found.nix.settings.experimental-features'
    ) % (ROOT, SYSTEM)
    done = nix(
        "eval", "--json", "--impure", f"path:{example}#nixosModules.default", "--apply", expression,
        flake=example, nixpkgs="rocflash/nixpkgs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    package, python, *features = json.loads(done.stdout)
    assert f"rocflash-{VERSION}" in package and f"rocflash-{VERSION}" in python
    assert "python3.withPackages" in python and features == ["nix-command", "flakes"]


def test_library(nix: Nix) -> None:
    args, requested = nix.args(f"packages.{SYSTEM}.library")
    assert requested == {
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
        "rocmPackages.clr",
        "zstd.override{enableStatic}",
    }
    assert args["version"] == VERSION and "-DROCFLASH_GPU_ARCHS=all" in args["cmakeFlags"]
    assert args["doInstallCheck"] and "rocflash verify" in args["installCheckPhase"]


def real_paths(flag: str) -> str:
    """The stub's paths replaced with this machine's tools."""
    tools = {
        "llvmPackages_22.clang-unwrapped": "clang++-22",
        "llvmPackages_22.lld": "ld.lld-22",
        "bash": "bash",
    }
    for name, tool in tools.items():
        flag = re.sub(
            rf"/requested/{re.escape(name)}/bin/[\w.+]+", shutil.which(tool) or tool, flag
        )
    assert "/requested/" not in flag, flag
    return flag


@pytest.mark.skipif(not shutil.which("clang++-22"), reason="clang 22 is not installed")
def test_library_configures(nix: Nix, tmp_path: Path) -> None:
    """CMake accepts the derivation's flags, and they configure a build with kernels."""
    args, _ = nix.args(f"packages.{SYSTEM}.library")
    flags = [real_paths(flag) for flag in args["cmakeFlags"]]
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
    """Runs the install phase over the library at the derivation's path, then imports the
    packages.
    """
    args, requested = nix.args(f"packages.{SYSTEM}.default")
    assert requested >= {"python3Packages.torch{rocmSupport}", "python3Packages.einops"}
    library = nix("eval", "--raw", f"path:{nix.source}#packages.{SYSTEM}.library")
    assert library.returncode == 0, library.stderr
    prefix = library.stdout.strip()
    assert prefix in args["installPhase"]
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL
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
    assert any(f"rocflash-{VERSION}" in name for name in fa3["dependencies"])
    subprocess.run(
        ["bash", "-e", "-c", "runHook() { :; }\n" + fa3["installPhase"]],
        cwd=nix.source,
        check=True,
        env={**os.environ, "out": str(out), "PATH": path},
    )
    modules = args["pythonImportsCheck"] + fa3["pythonImportsCheck"]
    imports = "; ".join(f"import {name}" for name in modules)
    code = (
        f"{imports}; import importlib.metadata as m; print(m.version('flash-attn'), "
        "rocflash.info()['library'])"
    )
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
    shutil.rmtree(prefix)


def test_shell(nix: Nix) -> None:
    args, requested = nix.args(f"devShells.{SYSTEM}.default")
    variables = {
        "ROCM_PATH": "/requested/rocmPackages.clr",
        "HIP_PATH": "/requested/rocmPackages.clr",
        "BUILD_TARGET": "rocm",
        "FLASH_ATTENTION_TRITON_AMD_ENABLE": "false",
    }
    assert {name: args[name] for name in variables} == variables
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
        assert name in requested, f"make test needs {name}"


def test_shell_has_the_documented_packages(nix: Nix) -> None:
    """torch for ROCm, flash_attn and pip in one Python; the math libraries."""
    args, requested = nix.args(f"devShells.{SYSTEM}.default")
    (python,) = (name for name in args["packages"] if "python3.withPackages" in name)
    for name in ("einops", "packaging", "pip", "psutil", "torch{rocmSupport}"):
        assert f"python3Packages.{name}" in python
    assert f"rocflash-{VERSION}" in python, "the package contains flash_attn"
    libraries = [
        "clr",
        "rocblas",
        "hipblas",
        "hipsparse",
        "rocsolver",
        "hipfft",
        "hiprand",
        "rccl",
        "rocthrust",
    ]
    assert requested >= {f"rocmPackages.{name}" for name in libraries} | {"gcc13"}


def test_checks(nix: Nix) -> None:
    verify, _ = nix.args(f"checks.{SYSTEM}.verify")
    assert (
        "rocflash verify" in verify["script"]
        and f"rocflash-{VERSION}" in verify["nativeBuildInputs"][0]
    )
    python, _ = nix.args(f"checks.{SYSTEM}.python")
    assert "import flash_attn, flash_attn_2_cuda, rocflash" in python["script"]


def test_downstream_example(nix: Nix, build: Path, tmp_path: Path) -> None:
    """A downstream flake that uses the overlay; its C program is built and run."""
    example = nix.source / "nix" / "example"
    shell, _ = nix.args(f"devShells.{SYSTEM}.default", flake=example, nixpkgs="rocflash/nixpkgs")
    assert any(f"rocflash-{VERSION}" in name for name in shell["packages"])
    args, requested = nix.args(
        f"packages.{SYSTEM}.default", flake=example, nixpkgs="rocflash/nixpkgs"
    )
    assert "dlpack" in requested
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
    result = subprocess.run(
        [tmp_path / "out/bin/attention"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"rocflash {VERSION}" in result.stdout


def test_nothing_is_downloaded() -> None:
    """No fetcher: the sources are these files, the dependencies come from nixpkgs."""
    for path in [ROOT / "flake.nix", *(ROOT / "nix").rglob("*.nix")]:
        assert "fetch" not in path.read_text()
