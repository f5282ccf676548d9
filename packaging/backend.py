"""Builds what `pip install .` installs from a clone: rocflash, flash_attn, flash_attention_amd and flash_attn_3 together.

The interface is PEP 517's and, for `pip install -e .`, PEP 660's. It needs nothing but Python's own library, so that it works without build
isolation too; CMake and Ninja are asked for where they are not there. What it does is printed (pip shows it with -v):

    GPU_ARCHS, PYTORCH_ROCM_ARCH   GPUs to compile kernels for, such as "gfx942;gfx1100", all, none, or native: those of this machine,
                                   which is the default; where there are none, common ones
    MAX_JOBS                       compilers at once; by default from cores and free memory
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE     no kernels, as GPU_ARCHS=none: everything is there, for the CPU alone
    FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE   depends on triton, and makes that backend the default
    ROCFLASH_BUILD                 the build directory; by default build/ where it has the same GPUs, else build-rocm-...
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).parent))
import archs
import audit
import jobs
import library
import wheel

ROOT = wheel.ROOT
CMAKE = (3, 25)
Settings = Optional[dict[str, Any]]


def say(what: str, text: str) -> None:
    print(f"rocflash: {what:9} {text}", flush=True)


def cmake_version() -> tuple[int, ...]:
    """Of the one in the path; (0,) without one."""
    try:
        told = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    found = re.search(r"version (\d+)\.(\d+)", told.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    needed = []
    if cmake_version() < CMAKE:
        needed.append(f"cmake>={CMAKE[0]}.{CMAKE[1]}")
    if not shutil.which("ninja"):
        needed.append("ninja")
    if sys.version_info < (3, 11) and not importlib.util.find_spec("tomli"):
        needed.append("tomli")
    return needed


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return []


def refuse_settings(config_settings: Settings) -> None:
    if config_settings:
        raise SystemExit(
            f"rocflash: --config-settings {', '.join(config_settings)}: there are none; "
            "GPU_ARCHS, PYTORCH_ROCM_ARCH, MAX_JOBS and ROCFLASH_BUILD are read from the environment"
        )


def default_backend() -> str:
    name = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
    return "triton" if library.truth(name, os.environ.get(name, "")) else ""


def choose_archs() -> archs.Choice:
    skip = "FLASH_ATTENTION_SKIP_CUDA_BUILD"
    if library.truth(skip, os.environ.get(skip, "")):
        return archs.Choice(("none",), f"{skip} is set: for the CPU alone")
    choice = archs.choose_here()
    if choice.names == archs.COMMON and not library.has_kernel_compiler():
        # Nothing was asked for, and no GPU is there that would go without.
        why = "no GPU found, and no clang 22 to compile kernels: for the CPU alone"
        return replace(choice, names=("none",), why=why)
    return choice


def build_library() -> tuple[Path, bool]:
    """The build directory, compiled, and whether the command could be built."""
    choice = choose_archs()
    job_count, job_why = jobs.choose()
    build = library.build_directory(choice)
    command = library.has_command_headers()
    say("GPUs", f"{' '.join(choice.names)} ({choice.why})")
    for note in choice.notes:
        say("", note)
    say("jobs", f"{job_count} ({job_why})")
    say("build", str(build))
    if not command:
        say(
            "command",
            "left out: CLI11, fmt or nlohmann_json is missing (apt-get install libcli11-dev libfmt-dev nlohmann-json3-dev)",
        )
    began = time.monotonic()
    options = [] if command else ["-DROCFLASH_BUILD_CLI=OFF"]
    library.compile_library(build, choice, job_count, *options, command=command)
    say("compiled", f"in {time.monotonic() - began:.0f} s")
    return build, command


def platform_tag(compiled: wheel.Files) -> str:
    """manylinux where the files keep to it, else this kind of machine."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, (data, _) in compiled.items():
            paths.append(Path(folder) / Path(name).name)
            paths[-1].write_bytes(data)
        try:
            return audit.platform_tag(paths)
        except (audit.Refused, OSError, subprocess.CalledProcessError) as error:
            say("tag", f"linux_x86_64, no manylinux: {error}")
            return "linux_x86_64"


def link_editable(build: Path, command: bool) -> None:
    """The compiled files where the package looks for them, as links: a later build serves at once."""
    files = {"lib/librocflash.so.0": build / "lib" / "librocflash.so.0"}
    if command:
        files["bin/rocflash"] = build / "bin" / "rocflash"
    for name, target in files.items():
        link = ROOT / "python" / "rocflash" / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def make_wheel(out: Path, editable: bool) -> str:
    try:
        backend = default_backend()
        build, command = build_library()
    except ValueError as error:
        raise SystemExit(f"rocflash: {error}") from None
    except (subprocess.CalledProcessError, OSError) as error:
        told = subprocess.run(
            ["scripts/setup.sh", "--check", "verify"], cwd=ROOT, capture_output=True, text=True
        )
        raise SystemExit(f"rocflash: {error}\n{told.stdout}{told.stderr}") from None
    compiled = wheel.compiled_files(build, command)
    if editable:
        if backend:
            say(
                "backend",
                "an editable installation has no default of its own: set FLASH_ATTENTION_TRITON_AMD_ENABLE when it runs",
            )
        link_editable(build, command)
    elif backend:
        say("backend", f"{backend}, unless a call or ROCFLASH_BACKEND names another")
    path = wheel.write_clone(out, f"py3-none-{platform_tag(compiled)}", compiled, backend, editable)
    say("wheel", f"{path.name}: rocflash, flash_attn, flash_attention_amd, flash_attn_3")
    return path.name


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    refuse_settings(config_settings)
    return make_wheel(Path(wheel_directory), editable=False)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    refuse_settings(config_settings)
    return make_wheel(Path(wheel_directory), editable=True)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Before anything is compiled, so that missing dependencies are found first."""
    refuse_settings(config_settings)
    told = wheel.project(ROOT / "pyproject.toml")
    name = f"{told['name']}-{told['version']}.dist-info"
    for place, text in (wheel.clone_metadata(default_backend()) | wheel.licences()).items():
        path = Path(metadata_directory) / name / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """The files of the repository, as git lists them."""
    refuse_settings(config_settings)
    told = wheel.project(ROOT / "pyproject.toml")
    stem = f"{told['name']}-{told['version']}"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    with tarfile.open(Path(sdist_directory) / f"{stem}.tar.gz", "w:gz") as archive:
        for name in (x for x in listed if x and (ROOT / x).exists()):
            archive.add(ROOT / name, f"{stem}/{name}")
        with tempfile.TemporaryDirectory() as folder:
            info = Path(folder) / "PKG-INFO"
            info.write_text(wheel.clone_metadata()["METADATA"])
            archive.add(info, f"{stem}/PKG-INFO")
    return f"{stem}.tar.gz"
