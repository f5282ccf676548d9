"""Writes wheels: their files, their metadata, and a reproducible zip.

The compiled files come from the build directory, so that a wheel takes seconds once the library is
built, and all wheels of a build have identical binaries. pyproject.toml is the only source of
names and dependencies, VERSION that of the version, also for `pip install .`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DROPIN = ROOT / "python" / "flash-attn"
DROPIN_3 = ROOT / "python" / "flash-attn-3"
DROPIN_4 = ROOT / "python" / "flash-attn-4"
# The dependency of wheels whose default backend is Triton: the version that AMD's guides pin, or
# newer.
TRITON = "triton>=3.5.1"
# The files of a wheel: contents, and whether executable.
Files = dict[str, tuple[bytes, bool]]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # before Python 3.11, other packages have one
        for name in ("tomli", "pip._vendor.tomli", "setuptools._vendor.tomli"):
            try:
                tomllib = import_module(name)
                break
            except ImportError:
                continue
        else:
            raise SystemExit(f"reading {path} needs Python 3.11 or newer, or tomli") from None
    return tomllib.loads(path.read_text())


def project(path: Path) -> dict[str, Any]:
    """The table [project], with the version from VERSION where pyproject.toml declares it dynamic,
    and links to the address in REPOSITORY if there is one."""
    found = read_toml(path)["project"]
    if "version" in found.get("dynamic", ()):
        found["version"] = (ROOT / "VERSION").read_text().strip()
    if address := (ROOT / "REPOSITORY").read_text().strip():
        found["urls"] = {"Homepage": address, "Repository": address}
    return found


def python_files(base: Path, names: Iterable[str]) -> Files:
    """Modules and packages below `base`; without caches and the links of an editable
    installation.
    """
    found: Files = {}
    for name in names:
        top = base / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and not {"__pycache__", "lib", "bin"} & set(
                path.parts[len(base.parts) :]
            ):
                found[path.relative_to(base).as_posix()] = (path.read_bytes(), False)
    return found


def compiled_files(build: Path, command: bool = True) -> Files:
    """The library under its soname, and the command, stripped and with installation rpaths; in a
    build for Windows, the DLL and the command next to it."""
    found: Files = {}
    with tempfile.TemporaryDirectory() as stage:
        for component in ("library", "command") if command else ("library",):
            subprocess.run(
                [
                    "cmake",
                    "--install",
                    str(build),
                    "--prefix",
                    stage,
                    "--component",
                    component,
                    "--strip",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        library = next(Path(stage).rglob("librocflash.so.0"), None)
        to, suffix = "rocflash/lib/librocflash.so.0", ""
        if (dll := Path(stage) / "bin" / "rocflash.dll").is_file():
            library, to, suffix = dll, "rocflash/bin/rocflash.dll", ".exe"
        program = Path(stage) / "bin" / f"rocflash{suffix}"
        if library is None or (command and not program.is_file()):
            raise FileNotFoundError(
                f"{build} does not install librocflash.so.0 and bin/rocflash; build it first"
            )
        found[to] = (library.resolve().read_bytes(), True)
        if command:
            found[f"rocflash/bin/rocflash{suffix}"] = (program.read_bytes(), True)
    return found


def rocflash_files(build: Path) -> Files:
    return python_files(ROOT / "python", ["rocflash"]) | compiled_files(build)


def pure_files(base: Path) -> Files:
    """The modules that the pyproject.toml of a pure Python distribution includes."""
    targets = read_toml(base / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]
    return python_files(base, targets["wheel"]["only-include"])


def dropin_files(version: str | None = None) -> Files:
    """The modules of flash-attn; `version` replaces their __version__."""
    found = pure_files(DROPIN)
    if version is not None:
        text = found["flash_attn/__init__.py"][0].decode()
        text, count = re.subn(
            r'^__version__ = "[^"]*"$', f'__version__ = "{version}"', text, flags=re.MULTILINE
        )
        if count != 1:
            raise RuntimeError(
                f"flash_attn/__init__.py has {count} lines with __version__ instead of one"
            )
        found["flash_attn/__init__.py"] = (text.encode(), False)
    return found


def metadata(project_table: dict[str, Any], readme: str, **changes: Any) -> str:
    """METADATA (core metadata 2.4) of a [project] table."""
    table = {**project_table, **changes}
    lines = ["Metadata-Version: 2.4", f"Name: {table['name']}", f"Version: {table['version']}"]
    lines += [f"Summary: {table['description']}", f"License-Expression: {table['license']}"]
    lines += [f"Author: {author['name']}" for author in table["authors"]]
    lines += [f"Project-URL: {label}, {url}" for label, url in table.get("urls", {}).items()]
    lines += [f"License-File: {name}" for name in table["license-files"]]
    if table.get("keywords"):
        lines.append(f"Keywords: {','.join(table['keywords'])}")
    lines += [f"Classifier: {name}" for name in table.get("classifiers", [])]
    lines.append(f"Requires-Python: {table['requires-python']}")
    lines += [f"Requires-Dist: {needed}" for needed in table.get("dependencies", [])]
    for extra, needs in table.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {needed}; extra == '{extra}'" for needed in needs]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def entry_points(project_table: dict[str, Any]) -> str:
    """entry_points.txt: the console scripts, and the plugins of servers."""
    groups = {"console_scripts": project_table["scripts"], **project_table.get("entry-points", {})}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in targets.items())
        for group, targets in groups.items()
    )


def _moment() -> tuple[int, int, int, int, int, int]:
    """The timestamp of every entry: SOURCE_DATE_EPOCH, else a fixed one (zip has none before
    1980).
    """
    value = os.environ.get("SOURCE_DATE_EPOCH", "1580601600")
    if not value.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH is {value!r}; it must be seconds since 1970")
    return time.gmtime(max(int(value), 315532800))[:6]


def write(
    out: Path,
    name: str,
    version: str,
    tags: list[str],
    files: Files,
    info: dict[str, str],
    pure: bool,
) -> Path:
    """Writes a reproducible wheel: sorted, fixed timestamps and modes, RECORD last."""
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    wheel_lines = [
        "Wheel-Version: 1.0",
        "Generator: rocflash",
        f"Root-Is-Purelib: {'true' if pure else 'false'}",
    ]
    wheel_lines += [f"Tag: {tag}" for tag in tags]
    info = {**info, "WHEEL": "\n".join(wheel_lines) + "\n"}
    entries = dict(sorted(files.items()))
    entries |= {
        f"{stem}.dist-info/{path}": (text.encode(), False) for path, text in sorted(info.items())
    }
    record = f"{stem}.dist-info/RECORD"
    lines = []
    for path, (data, _) in entries.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    entries[record] = ("".join([*lines, f"{record},,\n"]).encode(), False)

    out.mkdir(parents=True, exist_ok=True)
    # The platforms of several tags are joined with dots in the file name.
    platforms = ".".join(tag.split("-")[2] for tag in tags)
    path = out / f"{stem}-{'-'.join(tags[0].split('-')[:2])}-{platforms}.whl"
    partial = path.with_suffix(".partial")
    moment = _moment()
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry, (data, executable) in entries.items():
            member = zipfile.ZipInfo(entry, moment)
            member.create_system = 3  # Unix, so that installers apply the mode
            member.external_attr = (0o100755 if executable else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    partial.replace(path)
    return path


def licenses() -> dict[str, str]:
    return {
        f"licenses/{name}": (ROOT / name).read_text() for name in ("LICENSE-MIT", "LICENSE-APACHE")
    }


def write_rocflash(out: Path, build: Path, tags: list[str]) -> Path:
    """The distribution `rocflash`: library, command and Python package, for every Python."""
    project_table = project(ROOT / "pyproject.toml")
    info = {
        "METADATA": metadata(project_table, (ROOT / project_table["readme"]).read_text()),
        "entry_points.txt": entry_points(project_table),
    }
    return write(
        out,
        project_table["name"],
        project_table["version"],
        tags,
        rocflash_files(build),
        info | licenses(),
        pure=False,
    )


def write_pure(out: Path, base: Path) -> Path:
    """`flash-attn`, `flash-attn-3` or `flash-attn-4`: pure Python, on top of `rocflash`."""
    project_table = project(base / "pyproject.toml")
    info = {"METADATA": metadata(project_table, (base / project_table["readme"]).read_text())}
    return write(
        out,
        project_table["name"],
        project_table["version"],
        ["py3-none-any"],
        pure_files(base),
        info | licenses(),
        pure=True,
    )


def stamp(backend: str) -> Files:
    """The module with the default backend, which rocflash/_c/choice.py reads."""
    text = (
        f'"""The default backend, written when this wheel was built."""\n\nBACKEND = "{backend}"\n'
    )
    return {"rocflash/_c/_stamp.py": (text.encode(), False)} if backend else {}


def write_stamped(out: Path, version: str, tag: str, compiled: Files, backend: str = "") -> Path:
    """flash-attn and rocflash in one wheel, named after one combination of versions.

    `backend` is the default backend; only triton adds a dependency.
    """
    project_table, library = project(DROPIN / "pyproject.toml"), project(ROOT / "pyproject.toml")
    needs = [
        needed for needed in project_table["dependencies"] if not needed.startswith("rocflash")
    ]
    needs += [TRITON] if backend == "triton" else []
    readme = (DROPIN / project_table["readme"]).read_text()
    info = {
        "METADATA": metadata(project_table, readme, version=version, dependencies=needs),
        "entry_points.txt": entry_points(library),
    }
    files = dropin_files(version) | python_files(ROOT / "python", ["rocflash"]) | compiled
    files |= stamp(backend)
    return write(out, project_table["name"], version, [tag], files, info | licenses(), pure=False)


def clone_metadata(backend: str = "") -> dict[str, str]:
    """The .dist-info of a clone: rocflash's, with the dependencies of all distributions."""
    project_table = project(ROOT / "pyproject.toml")
    others = [project(base / "pyproject.toml") for base in (DROPIN, DROPIN_3, DROPIN_4)]
    needs = [name for other in others for name in other["dependencies"]]
    needs = [name for name in dict.fromkeys(needs) if not name.startswith("rocflash")]
    needs += [TRITON] if backend == "triton" else []
    return {
        "METADATA": metadata(
            project_table, (ROOT / project_table["readme"]).read_text(), dependencies=needs
        ),
        "entry_points.txt": entry_points(project_table),
        "top_level.txt": "rocflash\n",
    }


def write_clone(
    out: Path, tag: str, compiled: Files, backend: str = "", editable: bool = False
) -> Path:
    """All distributions in one wheel: a build backend returns exactly one.

    The wheel is named rocflash. It also installs the metadata of the others, so that version
    queries find them. These have no RECORD, because uninstalling rocflash removes them.
    """
    project_table = project(ROOT / "pyproject.toml")
    data = f"{project_table['name']}-{project_table['version']}.data/purelib"
    others = (DROPIN, DROPIN_3, DROPIN_4)
    paths = [ROOT / "python", *others]
    if editable:
        lines = "".join(f"{path}\n" for path in paths)
        files: Files = {"__editable__rocflash.pth": (lines.encode(), False)}
    else:
        files = python_files(paths[0], ["rocflash"]) | compiled | stamp(backend)
        for base in others:
            files |= pure_files(base)
    for base in others:
        other = project(base / "pyproject.toml")
        names = read_toml(base / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
        tops = "".join(
            f"{name.partition('/')[0].removesuffix('.py')}\n" for name in names["only-include"]
        )
        info_directory = f"{data}/{other['name'].replace('-', '_')}-{other['version']}.dist-info"
        texts = {
            "METADATA": metadata(other, (base / other["readme"]).read_text()),
            "INSTALLER": "rocflash, and removed with it: pip uninstall rocflash\n",
            "top_level.txt": tops,
        }
        files |= {
            f"{info_directory}/{name}": (text.encode(), False) for name, text in texts.items()
        }
    info = clone_metadata(backend) | licenses()
    return write(
        out, project_table["name"], project_table["version"], [tag], files, info, pure=False
    )
