"""The build backend of `pip install .` in a clone: all distributions in one wheel.

The interface is PEP 517's and, for `pip install -e .`, PEP 660's. The backend needs only Python's
standard library, so that it also works without build isolation. It requires CMake and Ninja only
where they are missing. It reports its choices (pip shows them with -v):

    GPU_ARCHS, PYTORCH_ROCM_ARCH
        GPUs to compile kernels for, such as "gfx942;gfx1100", all, none, or native: the GPUs of
        this machine, which is the default; without GPUs, common ones
    MAX_JOBS
        parallel compile jobs; the default depends on cores and free memory
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE
        no kernels, as GPU_ARCHS=none: everything imports, CPU only
    FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE
        depends on triton, and makes that backend the default
    ROCFLASH_BUILD
        the build directory; by default build/ if it has the same GPUs, else build-rocm-...

If the compiler of the kernels is missing, packaging/kernel_compiler.py installs it from PyPI into
the user's cache.
"""

from __future__ import annotations

import importlib.util
import os
import platform
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


def report(topic: str, text: str) -> None:
    print(f"rocflash: {topic:9} {text}", flush=True)


def cmake_version() -> tuple[int, ...]:
    """The version of cmake in PATH; (0,) if there is none."""
    try:
        result = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    found = re.search(r"version (\d+)\.(\d+)", result.stdout)
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


def reject_settings(config_settings: Settings) -> None:
    if config_settings:
        raise SystemExit(
            f"rocflash: --config-settings {', '.join(config_settings)}: no setting is supported; "
            "GPU_ARCHS, PYTORCH_ROCM_ARCH, MAX_JOBS and ROCFLASH_BUILD are read from the "
            "environment"
        )


def default_backend() -> str:
    name = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
    return "triton" if library.truth(name, os.environ.get(name, "")) else ""


def select_archs() -> archs.Choice:
    skip = "FLASH_ATTENTION_SKIP_CUDA_BUILD"
    if library.truth(skip, os.environ.get(skip, "")):
        return archs.Choice(("none",), f"{skip} is set: CPU only")
    choice = archs.choose_here()
    if choice.names != ("none",):
        choice = with_compiler(choice)
    return choice


def with_compiler(choice: archs.Choice) -> archs.Choice:
    """The choice, for which there is a compiler of kernels; without one, `none` if nothing needs
    kernels.
    """
    missing = library.ensure_kernel_compiler(report)
    if not missing:
        return choice
    signs = library.signs_of_gpus()
    if choice.names == archs.COMMON and not signs:
        # No architecture was requested, and no GPU of this machine is left without kernels.
        return replace(choice, names=("none",), why="CPU ONLY: no GPU found, and no clang 22")
    raise SystemExit(
        f"rocflash: GPU kernels for {' '.join(choice.names)} ({choice.why}) need {missing}"
        + (f"; this machine has {', '.join(signs)}" if signs else "")
        + ". docs/install.md describes how to get them; GPU_ARCHS=none builds for the CPU only."
    )


def build_library() -> tuple[Path, bool]:
    """Compiles the library; returns the build directory, and whether it has the command."""
    choice = select_archs()
    job_count, job_why = jobs.choose()
    build = library.build_directory(choice)
    has_command = library.has_command_headers()
    report("GPUs", f"{' '.join(choice.names)} ({choice.why})")
    for note in choice.notes:
        report("", note)
    report("jobs", f"{job_count} ({job_why})")
    report("build", str(build))
    if not has_command:
        report(
            "command",
            "not built: CLI11, fmt or nlohmann_json is missing (apt-get install libcli11-dev "
            "libfmt-dev nlohmann-json3-dev)",
        )
    start = time.monotonic()
    options = [] if has_command else ["-DROCFLASH_BUILD_CLI=OFF"]
    library.compile_library(build, choice, job_count, *options, command=has_command)
    report("compiled", f"in {time.monotonic() - start:.0f} s")
    return build, has_command


def platform_tag(compiled: wheel.Files) -> str:
    """manylinux if the audit passes, else this system's linux."""
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for name, (data, _) in compiled.items():
            paths.append(Path(directory) / Path(name).name)
            paths[-1].write_bytes(data)
        try:
            return audit.platform_tag(paths)
        except (audit.AuditError, OSError, subprocess.CalledProcessError) as error:
            tag = f"linux_{platform.machine()}"
            report("tag", f"{tag}, not manylinux: {error}")
            return tag


def link_editable(build: Path, command: bool) -> None:
    """Links the compiled files into the package, so that a later build takes effect at once."""
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
        check = subprocess.run(
            ["scripts/setup.sh", "--check", "verify"], cwd=ROOT, capture_output=True, text=True
        )
        raise SystemExit(f"rocflash: {error}\n{check.stdout}{check.stderr}") from None
    compiled = wheel.compiled_files(build, command)
    if editable:
        if backend:
            report(
                "backend",
                "an editable installation has no built-in default: set "
                "FLASH_ATTENTION_TRITON_AMD_ENABLE at run time",
            )
        link_editable(build, command)
    elif backend:
        report("backend", f"{backend}, unless a call or ROCFLASH_BACKEND selects another")
    path = wheel.write_clone(out, f"py3-none-{platform_tag(compiled)}", compiled, backend, editable)
    report(
        "wheel",
        f"{path.name}: rocflash, flash_attn, flash_attention_amd, flash_attn_3, flash_attn.cute",
    )
    return path.name


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    reject_settings(config_settings)
    return make_wheel(Path(wheel_directory), editable=False)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    reject_settings(config_settings)
    return make_wheel(Path(wheel_directory), editable=True)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Writes the metadata before compilation, so that missing dependencies are found first."""
    reject_settings(config_settings)
    metadata = wheel.project(ROOT / "pyproject.toml")
    name = f"{metadata['name']}-{metadata['version']}.dist-info"
    for file, text in (wheel.clone_metadata(default_backend()) | wheel.licenses()).items():
        path = Path(metadata_directory) / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """The files of the repository, as git lists them."""
    reject_settings(config_settings)
    metadata = wheel.project(ROOT / "pyproject.toml")
    stem = f"{metadata['name']}-{metadata['version']}"
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
        with tempfile.TemporaryDirectory() as directory:
            info = Path(directory) / "PKG-INFO"
            info.write_text(wheel.clone_metadata()["METADATA"])
            archive.add(info, f"{stem}/PKG-INFO")
    return f"{stem}.tar.gz"
