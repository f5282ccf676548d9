"""Wheels: contents, reproducibility, audit, SBOMs, installation and use."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import audit
import pytest
import sbom
import universal
import versions
import wheel
from conftest import ROOT, VERSION, Run, source_files

COMBINATION = versions.check("2.8.3", f"3.{sys.version_info[1]}", "2.10", "7.1")


@pytest.fixture(scope="module")
def compiled(build: Path) -> wheel.Files:
    return wheel.compiled_files(build)


@pytest.fixture(scope="module")
def stamped(compiled: wheel.Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.write_stamped(
        tmp_path_factory.mktemp("stamped"), COMBINATION.version, COMBINATION.tag, compiled
    )


@pytest.fixture(scope="module")
def dist(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    universal.write_all(build, out)
    return out


def tracked(directory: str) -> set[str]:
    return {str(Path(name).relative_to(directory)) for name in source_files(directory)}


def rocflash_names() -> set[str]:
    modules = {f"rocflash/{name}" for name in tracked("python/rocflash")}
    return modules | {"rocflash/bin/rocflash", "rocflash/lib/librocflash.so.0"}


def pure_names(directory: str) -> set[str]:
    return tracked(f"python/{directory}") - {
        "pyproject.toml",
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    }


def universal_wheels(dist: Path) -> tuple[Path, Path, Path, Path]:
    """rocflash, flash-attn, flash-attn-3 and flash-attn-4."""
    (library,), (dropin,) = dist.glob("rocflash-*.whl"), dist.glob("flash_attn-*.whl")
    (dropin_3,), (dropin_4,) = dist.glob("flash_attn_3-*.whl"), dist.glob("flash_attn_4-*.whl")
    return library, dropin, dropin_3, dropin_4


def info_names(stem: str, *more: str) -> set[str]:
    names = (
        "METADATA",
        "WHEEL",
        "RECORD",
        "licenses/LICENSE-MIT",
        "licenses/LICENSE-APACHE",
        *more,
    )
    return {f"{stem}.dist-info/{name}" for name in names}


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        found = archive.namelist()
    assert len(found) == len(set(found)), "an entry occurs twice"
    return set(found)


def check_record(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
        assert set(rows) == set(archive.namelist()) and rows.pop(record) == ["", ""]
        for name, (digest, size) in rows.items():
            data = archive.read(name)
            assert int(size) == len(data)
            assert (
                digest
                == "sha256="
                + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            )


def text(path: Path, end: str) -> str:
    with zipfile.ZipFile(path) as archive:
        return archive.read(
            next(name for name in archive.namelist() if name.endswith(end))
        ).decode()


def check_metadata(path: Path) -> importlib.metadata.PackageMetadata:
    """Validates with the strict parser of installers."""
    from packaging.metadata import Metadata

    return Metadata.from_email(text(path, "/METADATA"), validate=True)


EXTRA = 'triton>=3.5.1; extra == "triton"'


def test_stamped_wheel(stamped: Path) -> None:
    stem = f"flash_attn-{COMBINATION.version}"
    assert stamped.name == COMBINATION.file_name
    assert names(stamped) == rocflash_names() | pure_names("flash-attn") | info_names(
        stem, "entry_points.txt"
    )
    check_record(stamped)
    metadata = check_metadata(stamped)
    assert (metadata.name, str(metadata.version)) == ("flash-attn", COMBINATION.version)
    assert [str(need) for need in metadata.requires_dist] == ["torch>=2.2", "einops", EXTRA], (
        "the wheel is self-contained"
    )
    assert f'__version__ = "{COMBINATION.version}"' in text(stamped, "flash_attn/__init__.py")
    assert f"Tag: {COMBINATION.tag}\n" in text(
        stamped, "/WHEEL"
    ) and "Root-Is-Purelib: false" in text(stamped, "/WHEEL")


def test_universal_wheels(dist: Path) -> None:
    library, dropin, dropin_3, dropin_4 = universal_wheels(dist)
    assert names(library) == rocflash_names() | info_names(
        f"rocflash-{VERSION}", "entry_points.txt"
    )
    assert names(dropin) == pure_names("flash-attn") | info_names("flash_attn-2.8.3")
    assert names(dropin_3) == pure_names("flash-attn-3") | info_names("flash_attn_3-3.0.0")
    assert names(dropin_4) == pure_names("flash-attn-4") | info_names("flash_attn_4-4.0.0")
    # flash-attn owns the rest of the package flash_attn.
    assert all(x.startswith(("flash_attn/cute/", "flash_attn_4-")) for x in names(dropin_4))
    for path in (library, dropin, dropin_3, dropin_4):
        check_record(path)
    assert text(library, "/entry_points.txt") == (
        "[console_scripts]\nrocflash = rocflash._command:main\n\n"
        "[vllm.general_plugins]\nrocflash = rocflash.integrations.vllm:register\n\n"
        "[sglang.srt.plugins]\nrocflash = rocflash.integrations.sglang:register\n"
    )
    metadata = check_metadata(library)
    assert metadata.name == "rocflash" and [str(need) for need in metadata.requires_dist] == [
        'torch>=2.2; extra == "torch"',
        'jax>=0.5; extra == "jax"',
        'torch>=2.2; extra == "triton"',
        'triton>=3.5.1; extra == "triton"',
    ]
    needs = [str(need) for need in check_metadata(dropin).requires_dist]
    assert needs == [f"rocflash=={VERSION}", "torch>=2.2", "einops", EXTRA]
    for path in (dropin_3, dropin_4):
        needs = [str(need) for need in check_metadata(path).requires_dist]
        assert needs == [f"rocflash=={VERSION}", "torch>=2.2"]
    assert library.name.startswith(f"rocflash-{VERSION}-py3-none-manylinux_2_")
    for path in (dropin, dropin_3, dropin_4):
        assert path.name.endswith("-py3-none-any.whl")
        assert check_metadata(path).summary.endswith(f"served by rocflash {VERSION}")


def test_versions_compare(dist: Path) -> None:
    """Clients have upper bounds, and indexes reject local versions."""
    from packaging.version import Version

    _, dropin, dropin_3, _ = universal_wheels(dist)
    assert Version(str(check_metadata(dropin).version)) <= Version("2.8.3")
    assert check_metadata(dropin).version.local is check_metadata(dropin_3).version.local is None


def test_fa3_is_a_separate_wheel(dist: Path, stamped: Path) -> None:
    """Clients use FA3 if they can import it, so flash-attn must not contain it."""
    library, dropin, *_ = universal_wheels(dist)
    for path in (library, dropin, stamped):
        assert not any(name.startswith("flash_attn/cute/") for name in names(path))
        tops = {name.split("/")[0] for name in names(path)}
        assert not tops & {"flash_attn_3", "flash_attn_config.py", "flash_attn_interface.py"}


def test_old_wheels_are_replaced(build: Path, tmp_path: Path) -> None:
    old = [
        tmp_path / f"flash_attn-2.8.3+rocflash{VERSION}-py3-none-any.whl",
        tmp_path / "flash_attn_3-2.9.0-py3-none-any.whl",
        tmp_path / "flash_attn_4-3.9.0-py3-none-any.whl",
    ]
    kept = tmp_path / COMBINATION.file_name
    for path in (*old, kept):
        path.touch()
    universal.write_all(build, tmp_path)
    assert kept.exists() and not any(path.exists() for path in old)


def test_modes_and_times(dist: Path, stamped: Path) -> None:
    for path in [*dist.glob("*.whl"), stamped]:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                executable = entry.filename in (
                    "rocflash/bin/rocflash",
                    "rocflash/lib/librocflash.so.0",
                )
                assert entry.external_attr >> 16 == (0o100755 if executable else 0o100644)
                assert entry.date_time == (2020, 2, 2, 0, 0, 0)


def test_wheels_are_reproducible(build: Path, dist: Path, tmp_path: Path) -> None:
    universal.write_all(build, tmp_path)
    first, second = (
        {p.name: p.read_bytes() for p in directory.iterdir()} for directory in (dist, tmp_path)
    )
    assert first == second


def test_source_date_epoch_is_honored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(wheel.write_pure(tmp_path, wheel.DROPIN)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH is 'yesterday'; it must be seconds"):
        wheel.write_pure(tmp_path, wheel.DROPIN)


def test_binaries_have_no_build_paths(compiled: wheel.Files, build: Path) -> None:
    for name, (data, _) in compiled.items():
        for path in (str(ROOT), str(build)):
            assert path.encode() not in data, f"{name} contains {path}"


def test_checksums(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == {p.name for p in dist.iterdir()} - {
        "SHA256SUMS"
    }
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_bills_of_materials(dist: Path) -> None:
    library, *pure = universal_wheels(dist)
    for path in (library, *pure):
        bill = json.loads(path.with_suffix(".cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
        assert (
            bill["metadata"]["component"]["hashes"][0]["content"]
            == hashlib.sha256(path.read_bytes()).hexdigest()
        )
        assert {part["name"] for part in bill["components"] if part["type"] == "file"} == names(
            path
        )
        known = {part["bom-ref"] for part in bill["components"] if "bom-ref" in part}
        assert set(bill["dependencies"][0]["dependsOn"]) == known
    linked = [
        p["name"]
        for p in json.loads(library.with_suffix(".cdx.json").read_text())["components"]
        if "licenses" in p
    ]
    assert linked == ["dlpack", "zstd", "cli11", "fmt", "nlohmann-json", "libstdc++"]


@pytest.mark.parametrize(
    ("name", "numbers", "version"),
    [
        ("fmt", [90100], "9.1.0"),
        ("fmt", [110002], "11.0.2"),
        ("dlpack", [60], "0.6"),
        ("dlpack", [1, 1], "1.1"),
        ("zstd", [1, 5, 7], "1.5.7"),
    ],
)
def test_versions_of_linked_libraries(name: str, numbers: list[int], version: str) -> None:
    assert sbom.dotted(name, numbers) == version


def test_audit_of_a_wheel(run: Run, dist: Path, stamped: Path, tmp_path: Path) -> None:
    (library,) = dist.glob("rocflash-*.whl")
    result = run(sys.executable, "packaging/audit.py", library, stamped)
    assert result.returncode == 0, result.stderr
    wrong = tmp_path / f"rocflash-{VERSION}-py3-none-manylinux_2_5_x86_64.whl"
    shutil.copy(library, wrong)
    result = run(sys.executable, "packaging/audit.py", wrong)
    assert result.returncode == 1 and "should be tagged manylinux_2_" in result.stderr


def test_audit_rejects(tmp_path: Path) -> None:
    """Libraries outside manylinux, absolute rpaths and executable stacks."""
    source = tmp_path / "x.c"
    source.write_text("int compress(void); int f(void) { return 0; }\n")
    library = tmp_path / "x.so"

    def build(*options: str) -> None:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, *options], check=True)

    build()
    assert audit.platform_tag([library]) == "manylinux_2_17_x86_64"
    elf = bytearray(library.read_bytes())
    elf[18:20] = (183).to_bytes(2, "little")
    other = tmp_path / "aarch64.so"
    other.write_bytes(elf)
    assert audit.platform_tag([other]) == "manylinux_2_17_aarch64"
    with pytest.raises(audit.AuditError, match="a wheel has one architecture"):
        audit.platform_tag([library, other])
    build("-Wl,-rpath,/opt/rocm/lib")
    with pytest.raises(audit.AuditError, match="has the rpath /opt/rocm/lib"):
        audit.needs(library)
    build("-Wl,-z,execstack")
    with pytest.raises(audit.AuditError, match="executable stack"):
        audit.needs(library)
    (tmp_path / "y.c").write_text("int g(void) { return 0; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "liby.so", tmp_path / "y.c"], check=True
    )
    build("-Wl,--no-as-needed", f"-L{tmp_path}", "-ly")
    with pytest.raises(audit.AuditError, match=r"x\.so needs liby\.so; allowed are"):
        audit.needs(library)


def windows_file(*needed: str, machine: int = 0x8664) -> bytes:
    """A DLL of Windows with nothing but an import table."""
    address, offset = 0x1000, 0x200
    names, entries = b"", b""
    for name in needed:
        at = address + 20 * (len(needed) + 1) + len(names)
        entries += bytes(12) + at.to_bytes(4, "little") + bytes(4)
        names += name.encode() + b"\0"
    table = entries + bytes(20) + names
    header = machine.to_bytes(2, "little") + (1).to_bytes(2, "little") + bytes(12)
    header += (240).to_bytes(2, "little") + bytes(2)
    directories = bytes(8) + address.to_bytes(4, "little") + bytes(4) + bytes(8 * 14)
    section = bytes(12) + address.to_bytes(4, "little") + len(table).to_bytes(4, "little")
    section += offset.to_bytes(4, "little") + bytes(16)
    begin = b"MZ" + bytes(0x3A) + (0x40).to_bytes(4, "little") + b"PE\0\0" + header
    return (begin + bytes(112) + directories + section).ljust(offset, b"\0") + table


def test_audit_of_windows(tmp_path: Path) -> None:
    dll, elf = tmp_path / "rocflash.dll", tmp_path / "x.so"
    dll.write_bytes(windows_file("KERNEL32.dll", "msvcrt.dll"))
    assert audit.windows_needs(dll).libraries == ("KERNEL32.dll", "msvcrt.dll")
    assert audit.platform_tag([dll]) == "win_amd64"
    elf.write_bytes(b"\x7fELF" + bytes(100))
    with pytest.raises(audit.AuditError, match=r"x\.so is no DLL or program"):
        audit.platform_tag([dll, elf])
    dll.write_bytes(windows_file("KERNEL32.dll", "libwinpthread-1.dll"))
    with pytest.raises(audit.AuditError, match=r"needs libwinpthread-1\.dll; allowed are"):
        audit.platform_tag([dll])
    dll.write_bytes(windows_file("KERNEL32.dll", machine=0xAA64))
    with pytest.raises(audit.AuditError, match="no DLL or program for 64-bit x86 Windows"):
        audit.platform_tag([dll])


@pytest.mark.parametrize("which", ["stamped", "another Python", "universal"])
def test_installed_and_used(
    run: Run,
    build: Path,
    built_archs: str,
    dist: Path,
    compiled: wheel.Files,
    stamped: Path,
    tmp_path: Path,
    which: str,
) -> None:
    """packaging/test_wheel.sh, with the simulator if this build has it."""
    if which == "stamped":
        wheels = [stamped]
    elif which == "universal":
        wheels = list(dist.glob("*.whl"))
    else:
        other = versions.check(
            "2.6.3", "3.13" if sys.version_info[1] != 13 else "3.12", "2.13", "7.2", triton=True
        )
        wheels = [wheel.write_stamped(tmp_path, other.version, other.tag, compiled, "triton")]
    simulator = build / "lib" / "sim" / "libamdhip64.so"
    has_simulator = simulator.exists() and built_archs.startswith(("all", "gfx"))
    result = run(
        "packaging/test_wheel.sh",
        *wheels,
        PYTHON=sys.executable,
        ROCFLASH_SIMULATOR=str(simulator) if has_simulator else "none",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "CPU: forward and backward agree" in result.stdout
    assert ("default backend: triton" in result.stdout) == (which == "another Python")
    for name in ("flash_attn_3 3.0.0", "flash_attn.cute 4.0.0"):
        assert (f"{name}: bit-identical" in result.stdout) == (which == "universal")
    assert ("through the ROCm loader" in result.stdout) == has_simulator


def test_install_test_rejects_missing_files(run: Run, tmp_path: Path, stamped: Path) -> None:
    result = run("packaging/test_wheel.sh", tmp_path / "none.whl")
    assert result.returncode == 2 and "does not exist" in result.stderr
    result = run(
        "packaging/test_wheel.sh",
        stamped,
        PYTHON=sys.executable,
        ROCFLASH_SIMULATOR=str(tmp_path / "none.so"),
    )
    assert result.returncode == 2 and "no simulator at" in result.stderr


def test_install_test_detects_a_damaged_library(
    run: Run, tmp_path: Path, compiled: wheel.Files
) -> None:
    """A wheel with a damaged library must not pass."""
    damaged = dict(compiled) | {"rocflash/lib/librocflash.so.0": (b"\x7fELF", True)}
    path = wheel.write_stamped(tmp_path, COMBINATION.version, COMBINATION.tag, damaged)
    result = run("packaging/test_wheel.sh", path, PYTHON=sys.executable, ROCFLASH_SIMULATOR="none")
    assert result.returncode != 0 and "installed and tested" not in result.stdout
