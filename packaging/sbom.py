"""A bill of materials (CycloneDX 1.5, JSON) for a wheel: what is compiled into it, and each file with its hash."""

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

# What ends up inside the binaries: name, licence, and the headers and macros that may have the version.
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
# A version in one number: how its digits are grouped.
GROUPED = {"dlpack": (100, 10), "fmt": (10000, 100, 1)}


def _cache(build: Path) -> dict[str, str]:
    lines = (build / "CMakeCache.txt").read_text().splitlines()
    return {m[1]: m[2] for m in (re.match(r"([^#/:][^:]*):\w+=(.*)", line) for line in lines) if m}


def _includes(cache: dict[str, str]) -> list[Path]:
    """Where the build found its headers, the package folders' own prefixes first."""
    places = [Path(cache[name]) for name in ("ROCFLASH_ZSTD_INCLUDE",) if cache.get(name)]
    for name in ("dlpack_DIR", "CLI11_DIR", "fmt_DIR", "nlohmann_json_DIR"):
        if cache.get(name):
            places += [parent / "include" for parent in Path(cache[name]).parents]
    return [*places, Path("/usr/include")]


def dotted(name: str, numbers: list[int]) -> str:
    """A version as it is written: three macros, or one number that groups them (90100 is fmt 9.1.0)."""
    if len(numbers) == 1:
        first, *rest = GROUPED[name]
        numbers = [numbers[0] // first, *(numbers[0] // part % (first // rest[0]) for part in rest)]
    return ".".join(map(str, numbers))


def header_version(places: list[Path], name: str, headers: tuple[str, ...], pattern: str) -> str:
    for path in (place / header for header in headers for place in places):
        numbers = re.findall(rf"#\s*define\s+{pattern}", path.read_text()) if path.is_file() else []
        if numbers:
            return dotted(name, [int(number) for number in numbers])
    raise FileNotFoundError(
        f"no version of {name} in {', '.join(headers)} below {', '.join(map(str, places))}"
    )


def linked_parts(build: Path) -> list[dict[str, Any]]:
    cache = _cache(build)
    places = _includes(cache)
    parts = [
        (name, header_version(places, name, headers, macro), licence)
        for name, licence, headers, macro in HEADERS
    ]
    runtime = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True, check=True
    ).stdout.strip()
    parts.append(("libstdc++", runtime, "GPL-3.0-or-later WITH GCC-exception-3.1"))
    return [
        {
            "type": "library",
            "bom-ref": f"{name}@{version}",
            "name": name,
            "version": version,
            "scope": "required",
            "licenses": [{"expression": licence}],
        }
        for name, version, licence in parts
    ]


def describe(wheel: Path, build: Path) -> dict[str, Any]:
    """The bill of one wheel. Only wheels with compiled files have linked parts."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    told = Parser().parsestr(
        next(data for name, data in contents.items() if name.endswith("/METADATA")).decode()
    )
    name, version = told["Name"], told["Version"]
    reference = f"pkg:pypi/{name}@{version}"
    compiled = any(data[:4] == b"\x7fELF" for data in contents.values())
    parts = linked_parts(build) if compiled else []
    needed = [
        {
            "type": "library",
            "bom-ref": f"requirement:{need}",
            "name": re.split(r"[^\w.-]", need)[0],
            "description": f"needed at run time: {need}",
            "scope": "optional" if "extra ==" in need else "required",
        }
        for need in told.get_all("Requires-Dist") or []
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
                "licenses": [{"expression": told["License-Expression"]}],
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
