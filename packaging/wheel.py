"""Writes wheels: what the distributions consist of, their metadata, and a zip whose bits depend on nothing else.

The compiled part comes from the build directory, so that a wheel takes seconds once the library is built, and every
wheel of one build carries the same bits. pyproject.toml stays the only source of names, versions and dependencies;
`pip install .` reads the same.
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
# What wheels whose default backend is Triton depend on: the version that the AMD guides pin, or a younger one.
TRITON = "triton>=3.5.1"
# What a file is in a wheel: its bytes, and whether it may be executed.
Files = dict[str, tuple[bytes, bool]]


def read_toml(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # before Python 3.11, others bring one along
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
    return read_toml(path)["project"]


def python_files(base: Path, names: Iterable[str]) -> Files:
    """Modules and packages below `base`; caches stay out, and what an editable installation links there."""
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
    """The library under its soname, and the command, stripped and with the paths of an installation."""
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
        program = Path(stage) / "bin" / "rocflash"
        if library is None or (command and not program.is_file()):
            raise FileNotFoundError(
                f"{build} does not install librocflash.so.0 and bin/rocflash; build it first"
            )
        found["rocflash/lib/librocflash.so.0"] = (library.resolve().read_bytes(), True)
        if command:
            found["rocflash/bin/rocflash"] = (program.read_bytes(), True)
    return found


def rocflash_files(build: Path) -> Files:
    return python_files(ROOT / "python", ["rocflash"]) | compiled_files(build)


def pure_files(base: Path) -> Files:
    """The modules of a distribution in Python alone, those that its pyproject.toml includes."""
    targets = read_toml(base / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]
    return python_files(base, targets["wheel"]["only-include"])


def dropin_files(version: str | None = None) -> Files:
    """The modules of flash-attn; `version` replaces the one they announce."""
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


def metadata(told: dict[str, Any], readme: str, **changes: Any) -> str:
    """METADATA (core metadata 2.4) of a [project] table."""
    told = {**told, **changes}
    lines = ["Metadata-Version: 2.4", f"Name: {told['name']}", f"Version: {told['version']}"]
    lines += [f"Summary: {told['description']}", f"License-Expression: {told['license']}"]
    lines += [f"License-File: {name}" for name in told["license-files"]]
    if told.get("keywords"):
        lines.append(f"Keywords: {','.join(told['keywords'])}")
    lines += [f"Classifier: {name}" for name in told.get("classifiers", [])]
    lines.append(f"Requires-Python: {told['requires-python']}")
    lines += [f"Requires-Dist: {needed}" for needed in told.get("dependencies", [])]
    for extra, needs in told.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {needed}; extra == '{extra}'" for needed in needs]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def entry_points(told: dict[str, Any]) -> str:
    """The commands, and what servers load."""
    groups = {"console_scripts": told["scripts"], **told.get("entry-points", {})}
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in places.items())
        for group, places in groups.items()
    )


def _moment() -> tuple[int, int, int, int, int, int]:
    """The time in every entry: SOURCE_DATE_EPOCH, else one fixed moment (zip knows none before 1980)."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "1580601600")
    if not given.isdecimal():
        raise ValueError(f"SOURCE_DATE_EPOCH: {given!r}; it must be seconds since 1970")
    return time.gmtime(max(int(given), 315532800))[:6]


def write(
    out: Path,
    name: str,
    version: str,
    tags: list[str],
    files: Files,
    info: dict[str, str],
    pure: bool,
) -> Path:
    """One wheel: `files`, and `info` below the .dist-info. Sorted, with fixed times and modes, RECORD last."""
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
    # Several platforms in one tag are written with dots between them, as in the file's name.
    platforms = ".".join(tag.split("-")[2] for tag in tags)
    path = out / f"{stem}-{'-'.join(tags[0].split('-')[:2])}-{platforms}.whl"
    partial = path.with_suffix(".partial")
    moment = _moment()
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for entry, (data, executable) in entries.items():
            member = zipfile.ZipInfo(entry, moment)
            member.create_system = 3  # Unix, so that the mode counts
            member.external_attr = (0o100755 if executable else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    partial.replace(path)
    return path


def licences() -> dict[str, str]:
    return {
        f"licenses/{name}": (ROOT / name).read_text() for name in ("LICENSE-MIT", "LICENSE-APACHE")
    }


def write_rocflash(out: Path, build: Path, tags: list[str]) -> Path:
    """The distribution `rocflash`: library, command and Python face, for every Python."""
    told = project(ROOT / "pyproject.toml")
    info = {
        "METADATA": metadata(told, (ROOT / told["readme"]).read_text()),
        "entry_points.txt": entry_points(told),
    }
    return write(
        out,
        told["name"],
        told["version"],
        tags,
        rocflash_files(build),
        info | licences(),
        pure=False,
    )


def write_pure(out: Path, base: Path) -> Path:
    """`flash-attn` or `flash-attn-3`: in Python alone, on top of the distribution `rocflash`."""
    told = project(base / "pyproject.toml")
    info = {"METADATA": metadata(told, (base / told["readme"]).read_text())}
    return write(
        out,
        told["name"],
        told["version"],
        ["py3-none-any"],
        pure_files(base),
        info | licences(),
        pure=True,
    )


def stamp(backend: str) -> Files:
    """The module that names the backend of calls which name none; rocflash/_c/choice.py reads it."""
    text = f'"""Written when this wheel was built: the backend of calls that name none."""\n\nBACKEND = "{backend}"\n'
    return {"rocflash/_c/_stamp.py": (text.encode(), False)} if backend else {}


def write_stamped(out: Path, version: str, tag: str, compiled: Files, backend: str = "") -> Path:
    """flash-attn and rocflash in one file, under the name of one combination of versions.

    `backend` is what computes unless a call names another; of those only triton is a distribution to depend on.
    """
    told, library = project(DROPIN / "pyproject.toml"), project(ROOT / "pyproject.toml")
    needs = [needed for needed in told["dependencies"] if not needed.startswith("rocflash")]
    needs += [TRITON] if backend == "triton" else []
    readme = (DROPIN / told["readme"]).read_text()
    info = {
        "METADATA": metadata(told, readme, version=version, dependencies=needs),
        "entry_points.txt": entry_points(library),
    }
    files = dropin_files(version) | python_files(ROOT / "python", ["rocflash"]) | compiled
    files |= stamp(backend)
    return write(out, told["name"], version, [tag], files, info | licences(), pure=False)


def clone_metadata(backend: str = "") -> dict[str, str]:
    """What lies in the .dist-info of an installation from a clone: rocflash's own, with what the others need."""
    told = project(ROOT / "pyproject.toml")
    others = [project(base / "pyproject.toml") for base in (DROPIN, DROPIN_3)]
    needs = [name for other in others for name in other["dependencies"]]
    needs = [name for name in dict.fromkeys(needs) if not name.startswith("rocflash")]
    needs += [TRITON] if backend == "triton" else []
    return {
        "METADATA": metadata(told, (ROOT / told["readme"]).read_text(), dependencies=needs),
        "entry_points.txt": entry_points(told),
        "top_level.txt": "rocflash\n",
    }


def write_clone(
    out: Path, tag: str, compiled: Files, backend: str = "", editable: bool = False
) -> Path:
    """All three distributions in one wheel, for `pip install .`: a build backend may hand over one wheel and no more.

    It is named rocflash. The metadata of the other two is installed beside it, so that those who ask for their
    versions find them; without a RECORD, because removing rocflash is what removes them.
    """
    told = project(ROOT / "pyproject.toml")
    data = f"{told['name']}-{told['version']}.data/purelib"
    places = [ROOT / "python", DROPIN, DROPIN_3]
    if editable:
        lines = "".join(f"{place}\n" for place in places)
        files: Files = {"__editable__rocflash.pth": (lines.encode(), False)}
    else:
        files = python_files(places[0], ["rocflash"]) | compiled | stamp(backend)
        files |= pure_files(DROPIN) | pure_files(DROPIN_3)
    for base in (DROPIN, DROPIN_3):
        other = project(base / "pyproject.toml")
        names = read_toml(base / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
        tops = "".join(f"{name.removesuffix('.py')}\n" for name in names["only-include"])
        folder = f"{data}/{other['name'].replace('-', '_')}-{other['version']}.dist-info"
        texts = {
            "METADATA": metadata(other, (base / other["readme"]).read_text()),
            "INSTALLER": "rocflash, and removed with it: pip uninstall rocflash\n",
            "top_level.txt": tops,
        }
        files |= {f"{folder}/{name}": (text.encode(), False) for name, text in texts.items()}
    info = clone_metadata(backend) | licences()
    return write(out, told["name"], told["version"], [tag], files, info, pure=False)
