"""Wheels opened and checked name by name, written twice, audited, described, installed and used."""

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
from conftest import ROOT, Run, source_files

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


def tracked(folder: str) -> set[str]:
    return {str(Path(name).relative_to(folder)) for name in source_files(folder)}


def rocflash_names() -> set[str]:
    modules = {f"rocflash/{name}" for name in tracked("python/rocflash")}
    return modules | {"rocflash/bin/rocflash", "rocflash/lib/librocflash.so.0"}


def pure_names(folder: str) -> set[str]:
    return tracked(f"python/{folder}") - {
        "pyproject.toml",
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    }


def universal_wheels(dist: Path) -> tuple[Path, Path, Path]:
    """rocflash, flash-attn and flash-attn-3."""
    (library,), (dropin,) = dist.glob("rocflash-*.whl"), dist.glob("flash_attn-*.whl")
    (dropin_3,) = dist.glob("flash_attn_3-*.whl")
    return library, dropin, dropin_3


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
    assert len(found) == len(set(found)), "an entry is there twice"
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
    """By the installers' own strict reader."""
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
    told = check_metadata(stamped)
    assert (told.name, str(told.version)) == ("flash-attn", COMBINATION.version)
    assert [str(need) for need in told.requires_dist] == ["torch>=2.2", "einops", EXTRA], (
        "one file installs all"
    )
    assert f'__version__ = "{COMBINATION.version}"' in text(stamped, "flash_attn/__init__.py")
    assert f"Tag: {COMBINATION.tag}\n" in text(
        stamped, "/WHEEL"
    ) and "Root-Is-Purelib: false" in text(stamped, "/WHEEL")


def test_universal_wheels(dist: Path) -> None:
    library, dropin, dropin_3 = universal_wheels(dist)
    assert names(library) == rocflash_names() | info_names("rocflash-0.1.0", "entry_points.txt")
    assert names(dropin) == pure_names("flash-attn") | info_names("flash_attn-2.8.3")
    assert names(dropin_3) == pure_names("flash-attn-3") | info_names("flash_attn_3-3.0.0")
    for path in (library, dropin, dropin_3):
        check_record(path)
    assert text(library, "/entry_points.txt") == (
        "[console_scripts]\nrocflash = rocflash._command:main\n\n"
        "[vllm.general_plugins]\nrocflash = rocflash.integrations.vllm:register\n\n"
        "[sglang.srt.plugins]\nrocflash = rocflash.integrations.sglang:register\n"
    )
    told = check_metadata(library)
    assert told.name == "rocflash" and [str(need) for need in told.requires_dist] == [
        'torch>=2.2; extra == "torch"',
        'torch>=2.2; extra == "triton"',
        'triton>=3.5.1; extra == "triton"',
    ]
    needs = [str(need) for need in check_metadata(dropin).requires_dist]
    assert needs == ["rocflash==0.1.0", "torch>=2.2", "einops", EXTRA]
    needs = [str(need) for need in check_metadata(dropin_3).requires_dist]
    assert needs == ["rocflash==0.1.0", "torch>=2.2"]
    assert library.name.startswith("rocflash-0.1.0-py3-none-manylinux_2_")
    for path in (dropin, dropin_3):
        assert path.name.endswith("-py3-none-any.whl")
        assert check_metadata(path).summary.endswith("served by rocflash 0.1.0")


def test_versions_compare(dist: Path) -> None:
    """Clients have upper bounds, and indexes take no local versions."""
    from packaging.version import Version

    _, dropin, dropin_3 = universal_wheels(dist)
    assert Version(str(check_metadata(dropin).version)) <= Version("2.8.3")
    assert check_metadata(dropin).version.local is check_metadata(dropin_3).version.local is None


def test_fa3_is_apart(dist: Path, stamped: Path) -> None:
    """Clients switch to FA3 wherever they can import it; flash-attn alone must not bring it."""
    library, dropin, _ = universal_wheels(dist)
    for path in (library, dropin, stamped):
        tops = {name.split("/")[0] for name in names(path)}
        assert not tops & {"flash_attn_3", "flash_attn_config.py", "flash_attn_interface.py"}


def test_old_wheels_are_replaced(build: Path, tmp_path: Path) -> None:
    old = [
        tmp_path / "flash_attn-2.8.3+rocflash0.1.0-py3-none-any.whl",
        tmp_path / "flash_attn_3-2.9.0-py3-none-any.whl",
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


def test_written_twice_they_are_the_same_bits(build: Path, dist: Path, tmp_path: Path) -> None:
    universal.write_all(build, tmp_path)
    first, second = (
        {p.name: p.read_bytes() for p in folder.iterdir()} for folder in (dist, tmp_path)
    )
    assert first == second


def test_source_date_epoch_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(wheel.write_pure(tmp_path, wheel.DROPIN)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ValueError, match="SOURCE_DATE_EPOCH: 'yesterday'; it must be seconds"):
        wheel.write_pure(tmp_path, wheel.DROPIN)


def test_nothing_remembers_where_it_was_built(compiled: wheel.Files, build: Path) -> None:
    for name, (data, _) in compiled.items():
        for place in (str(ROOT), str(build)):
            assert place.encode() not in data, f"{name} mentions {place}"


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
def test_versions_of_parts(name: str, numbers: list[int], version: str) -> None:
    assert sbom.dotted(name, numbers) == version


def test_audit_of_a_wheel(run: Run, dist: Path, stamped: Path, tmp_path: Path) -> None:
    (library,) = dist.glob("rocflash-*.whl")
    told = run(sys.executable, "packaging/audit.py", library, stamped)
    assert told.returncode == 0, told.stderr
    wrong = tmp_path / "rocflash-0.1.0-py3-none-manylinux_2_5_x86_64.whl"
    shutil.copy(library, wrong)
    told = run(sys.executable, "packaging/audit.py", wrong)
    assert told.returncode == 1 and "should be tagged manylinux_2_" in told.stderr


def test_audit_refuses(tmp_path: Path) -> None:
    """Libraries that not every system has, and places that do not travel."""
    source = tmp_path / "x.c"
    source.write_text("int compress(void); int f(void) { return 0; }\n")
    library = tmp_path / "x.so"

    def build(*options: str) -> None:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, *options], check=True)

    build()
    assert audit.platform_tag([library]) == "manylinux_2_17_x86_64"
    build("-Wl,-rpath,/opt/rocm/lib")
    with pytest.raises(audit.Refused, match="looks for libraries in /opt/rocm/lib"):
        audit.needs(library)
    build("-Wl,-z,execstack")
    with pytest.raises(audit.Refused, match="executable stack"):
        audit.needs(library)
    (tmp_path / "y.c").write_text("int g(void) { return 0; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "liby.so", tmp_path / "y.c"], check=True
    )
    build("-Wl,--no-as-needed", f"-L{tmp_path}", "-ly")
    with pytest.raises(audit.Refused, match=r"x\.so needs liby\.so; allowed are"):
        audit.needs(library)


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
    """packaging/test_wheel.sh, with the simulator where this build has it."""
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
    there = simulator.exists() and built_archs.startswith(("all", "gfx"))
    told = run(
        "packaging/test_wheel.sh",
        *wheels,
        PYTHON=sys.executable,
        ROCFLASH_SIMULATOR=str(simulator) if there else "none",
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "CPU: forward and backward agree" in told.stdout
    assert ("default backend: triton" in told.stdout) == (which == "another Python")
    assert ("flash_attn_3 3.0.0: the same bits" in told.stdout) == (which == "universal")
    assert ("through the ROCm loader" in told.stdout) == there


def test_install_test_refuses(run: Run, tmp_path: Path, stamped: Path) -> None:
    told = run("packaging/test_wheel.sh", tmp_path / "none.whl")
    assert told.returncode == 2 and "is not there" in told.stderr
    told = run(
        "packaging/test_wheel.sh",
        stamped,
        PYTHON=sys.executable,
        ROCFLASH_SIMULATOR=str(tmp_path / "none.so"),
    )
    assert told.returncode == 2 and "no simulator at" in told.stderr


def test_install_test_can_fail(run: Run, tmp_path: Path, compiled: wheel.Files) -> None:
    """A wheel whose library is damaged must not pass."""
    broken = dict(compiled) | {"rocflash/lib/librocflash.so.0": (b"\x7fELF", True)}
    path = wheel.write_stamped(tmp_path, COMBINATION.version, COMBINATION.tag, broken)
    told = run("packaging/test_wheel.sh", path, PYTHON=sys.executable, ROCFLASH_SIMULATOR="none")
    assert told.returncode != 0 and "installed and used" not in told.stdout
