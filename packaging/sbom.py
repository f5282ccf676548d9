"""Writes the SBOM (CycloneDX 1.5, JSON) of a wheel: linked libraries, and files with hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

# The libraries that are compiled in: name, license, and the headers and macros that may have the
# version.
HEADERS = (
    (
        "dlpack",
        "Apache-2.0",
        ("dlpack/dlpack.h",),
        r"DLPACK_(?:VERSION|MAJOR_VERSION|MINOR_VERSION)\s+(\d+)",
    ),
    ("zstd", "BSD-3-Clause", ("zstd.h",), r"ZSTD_VERSION_(?:MAJOR|MINOR|RELEASE)\s+(\d+)"),
    ("cli11", "BSD-3-Clause", ("CLI/Version.hpp",), r"CLI11_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)"),
    ("fmt", "MIT", ("fmt/base.h", "fmt/core.h"), r"FMT_VERSION\s+(\d+)"),
    (
        "nlohmann-json",
        "MIT",
        ("nlohmann/detail/abi_macros.hpp", "nlohmann/json.hpp"),
        r"NLOHMANN_JSON_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)",
    ),
)
# The C library of builds for Windows, which is linked statically.
MINGW = Path("/usr/x86_64-w64-mingw32/include")
MINGW_VERSION = r"__MINGW64_VERSION_(?:MAJOR|MINOR)\s+(\d+)"
# How a version in one number is grouped.
GROUPED = {"dlpack": (100, 10), "fmt": (10000, 100, 1)}


def _cache(build: Path) -> dict[str, str]:
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return {m[1]: m[2] for m in (re.match(r"([^#/:][^:]*):\w+=(.*)", line) for line in lines) if m}


def _includes(cache: dict[str, str]) -> list[Path]:
    """The include directories of the build, the prefixes of the CMake packages first."""
    includes = [Path(cache[name]) for name in ("ROCFLASH_ZSTD_INCLUDE",) if cache.get(name)]
    for name in ("dlpack_DIR", "CLI11_DIR", "fmt_DIR", "nlohmann_json_DIR"):
        if cache.get(name):
            includes += [parent / "include" for parent in Path(cache[name]).parents]
    return [*includes, Path("/usr/include")]


def dotted(name: str, numbers: list[int]) -> str:
    """A dotted version from three macros, or from one number that groups them (90100 is fmt
    9.1.0).
    """
    if len(numbers) == 1:
        first, *rest = GROUPED[name]
        numbers = [numbers[0] // first, *(numbers[0] // part % (first // rest[0]) for part in rest)]
    return ".".join(map(str, numbers))


def header_version(includes: list[Path], name: str, headers: tuple[str, ...], pattern: str) -> str:
    for path in (include / header for header in headers for include in includes):
        numbers = re.findall(rf"#\s*define\s+{pattern}", path.read_text()) if path.is_file() else []
        if numbers:
            return dotted(name, [int(number) for number in numbers])
    raise FileNotFoundError(
        f"no version of {name} in {', '.join(headers)} below {', '.join(map(str, includes))}"
    )


def linked_parts(build: Path) -> list[dict[str, Any]]:
    cache = _cache(build)
    includes = _includes(cache)
    parts = [
        (name, header_version(includes, name, headers, macro), license)
        for name, license, headers, macro in HEADERS
    ]
    windows = (build / "bin" / "rocflash.dll").exists()
    runtime = subprocess.run(
        ["x86_64-w64-mingw32-g++" if windows else "g++", "-dumpfullversion"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    parts.append(("libstdc++", runtime, "GPL-3.0-or-later WITH GCC-exception-3.1"))
    if windows:
        version = header_version([MINGW], "mingw-w64", ("_mingw_mac.h",), MINGW_VERSION)
        parts.append(("mingw-w64", version, "ZPL-2.1 AND MIT"))
    return [
        {
            "type": "library",
            "bom-ref": f"{name}@{version}",
            "name": name,
            "version": version,
            "scope": "required",
            "licenses": [{"expression": license}],
        }
        for name, version, license in parts
    ]


def describe(wheel: Path, build: Path) -> dict[str, Any]:
    """The bill of materials of one wheel. Only wheels with compiled files have linked parts."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    metadata = Parser().parsestr(
        next(data for name, data in contents.items() if name.endswith("/METADATA")).decode()
    )
    name, version = metadata["Name"], metadata["Version"]
    reference = f"pkg:pypi/{name}@{version}"
    compiled = any(data.startswith((b"\x7fELF", b"MZ")) for data in contents.values())
    parts = linked_parts(build) if compiled else []
    needed = [
        {
            "type": "library",
            "bom-ref": f"requirement:{need}",
            "name": re.split(r"[^\w.-]", need)[0],
            "description": f"needed at run time: {need}",
            "scope": "optional" if "extra ==" in need else "required",
        }
        for need in metadata.get_all("Requires-Dist") or []
    ]
    files = [
        {
            "type": "file",
            "name": path,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
        }
        for path, data in sorted(contents.items())
    ]
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600")))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
            "component": {
                "type": "library",
                "bom-ref": reference,
                "name": name,
                "version": version,
                "purl": reference,
                "licenses": [{"expression": metadata["License-Expression"]}],
                "hashes": [
                    {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
                ],
            },
        },
        "components": [*parts, *needed, *files],
        "dependencies": [
            {"ref": reference, "dependsOn": [part["bom-ref"] for part in [*parts, *needed]]}
        ],
    }


def write(wheel: Path, build: Path) -> Path:
    path = wheel.with_suffix(".cdx.json")
    path.write_text(json.dumps(describe(wheel, build), indent=2) + "\n")
    return path
