"""The Debian packages: built with CPack, installed by dpkg into a scratch root, used, and
removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, VERSION

TOOLS = ("cpack", "dpkg", "dpkg-deb", "dpkg-shlibdeps", "gzip")
pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"this needs {', '.join(TOOLS)}"
)
PACKAGES = ("librocflash0", "librocflash-dev", "rocflash")
# The dependencies, which the scratch root's status file lists as installed.
STATUS = "".join(
    f"Package: {name}\nStatus: install ok installed\nMaintainer: none\nArchitecture: "
    f"amd64\nVersion: {version}\n\n"
    for name, version in (("libc6", "2.99"), ("libdlpack-dev", "0.6-1"))
)


@pytest.fixture(scope="module")
def packages(build: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("debs")
    done = subprocess.run(
        ["cpack", "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", directory],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name.split("_")[0]: path for path in directory.glob("*.deb")}
    assert set(found) == set(PACKAGES)
    return found


def field(path: Path, name: str) -> str:
    result = subprocess.run(
        ["dpkg-deb", "--field", path, name], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def contents(path: Path) -> set[str]:
    result = subprocess.run(
        ["dpkg-deb", "--contents", path], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=5) for line in result.splitlines()]
    assert all(row[1] == "root/root" for row in rows)
    return {row[5].split(" -> ")[0].removeprefix(".") for row in rows if not row[5].endswith("/")}


def test_fields(packages: dict[str, Path]) -> None:
    for name, path in packages.items():
        assert field(path, "Package") == name
        assert field(path, "Version") == f"{VERSION}-1" and field(path, "Architecture") == "amd64"
    assert field(packages["librocflash0"], "Depends").startswith("libc6 (>= 2.")
    assert (
        field(packages["librocflash-dev"], "Depends")
        == f"librocflash0 (= {VERSION}-1), libdlpack-dev"
    )
    assert field(packages["rocflash"], "Depends").startswith(f"librocflash0 (= {VERSION}-1), libc6")


def test_contents(packages: dict[str, Path]) -> None:
    def doc_files(package: str) -> set[str]:
        return {f"/usr/share/doc/{package}/{name}" for name in ("copyright", "changelog.Debian.gz")}

    assert contents(packages["librocflash0"]) == {
        "/usr/lib/librocflash.so.0",
        f"/usr/lib/librocflash.so.{VERSION}",
        *doc_files("librocflash0"),
    }
    assert contents(packages["rocflash"]) == {
        "/usr/bin/rocflash",
        "/usr/share/man/man1/rocflash.1.gz",
        "/usr/share/bash-completion/completions/rocflash",
        "/usr/share/zsh/site-functions/_rocflash",
        "/usr/share/fish/vendor_completions.d/rocflash.fish",
        *doc_files("rocflash"),
    }
    development = contents(packages["librocflash-dev"])
    assert {
        "/usr/lib/librocflash.so",
        "/usr/lib/pkgconfig/rocflash.pc",
        "/usr/lib/cmake/rocflash/rocflashConfig.cmake",
        "/usr/include/rocflash/rocflash.h",
        "/usr/include/rocflash/rocflash.hpp",
        "/usr/share/doc/rocflash/docs/guides/c-cpp.md",
        *doc_files("librocflash-dev"),
    } <= development


def dpkg(root: Path, *arguments: str | Path) -> None:
    """dpkg on a scratch root; scripts run outside it, since it has no shell."""
    prefix = [] if os.geteuid() == 0 else ["fakeroot"]
    options = [f"--root={root}", "--force-script-chrootless", f"--log={root}/log"]
    done = subprocess.run([*prefix, "dpkg", *options, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 and not shutil.which("fakeroot"), reason="this needs root or fakeroot"
)
def test_install_run_remove(packages: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    admin = root / "var/lib/dpkg"
    for directory in ("info", "updates", "triggers"):
        (admin / directory).mkdir(parents=True)
    (admin / "status").write_text(STATUS)
    dpkg(root, "--install", *packages.values())

    clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    result = subprocess.run(
        [root / "usr/bin/rocflash", "info"], capture_output=True, text=True, env=clean
    )
    assert result.returncode == 0 and f"rocflash {VERSION}" in result.stdout, (
        result.stdout + result.stderr
    )
    program = tmp_path / "attention"
    source = root / "usr/share/doc/rocflash/examples/attention.c"
    subprocess.run(
        [
            "cc",
            source,
            f"-I{root}/usr/include",
            f"-L{root}/usr/lib",
            "-lrocflash",
            f"-Wl,-rpath,{root}/usr/lib",
            "-o",
            program,
        ],
        check=True,
    )
    assert (
        f"rocflash {VERSION}"
        in subprocess.run([program], capture_output=True, text=True, check=True).stdout
    )

    dpkg(root, "--purge", *PACKAGES)
    left = [path for path in (root / "usr").rglob("*") if "rocflash" in path.name]
    assert not left


@pytest.mark.skipif(not shutil.which("lintian"), reason="lintian is not installed")
def test_lintian(packages: dict[str, Path]) -> None:
    """lintian reports only tags that docs/install.md explains."""
    result = subprocess.run(
        ["lintian", "--allow-root", *packages.values()], capture_output=True, text=True
    ).stdout
    explained = (ROOT / "docs" / "install.md").read_text()
    for line in result.splitlines():
        assert f"`{line.split()[2]}`" in explained, line
