#!/usr/bin/env python3
"""Unpacks zstd's sources, zstd.c and zstd.h, for builds for systems without a libzstd.a.

    zstd_source.py DIRECTORY

They are in the source distribution `zstandard` of the configured package index, whose version and
hash are in requirements-windows.txt. pip itself is not called for it: it would run the
distribution's build, with tools that are not pinned.
"""

from __future__ import annotations

import hashlib
import html
import io
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements-windows.txt")
FILES = ("zstd.c", "zstd.h", "zstd_errors.h")


class FetchError(RuntimeError):
    """The sources could not be fetched; the message has the reason."""


def index() -> str:
    """The address of the package index that pip uses."""
    if named := os.environ.get("PIP_INDEX_URL"):
        return named
    own = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(own, capture_output=True, text=True).stdout.strip()
    if configured:
        return configured
    from pip._internal.models.index import PyPI

    return str(PyPI.simple_url)


def get(address: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def fetch() -> bytes:
    """The source distribution; its hash is checked."""
    text = REQUIREMENTS.read_text()
    found = re.search(r"^(\w+)==(\S+) \\\n\s+--hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if not found:
        raise FetchError(f"{REQUIREMENTS} has no requirement with a hash")
    name, version, digest = found.groups()
    page = f"{index().rstrip('/')}/{name}/"
    archive = f"{name}-{version}.tar.gz"
    # Every index has pages in HTML (PEP 503).
    for link in re.findall(r'<a\b[^>]*\bhref="([^"]+)"', get(page, "text/html").decode()):
        address = urllib.parse.urljoin(page, html.unescape(link).partition("#")[0])
        if not address.endswith(f"/{archive}"):
            continue
        data = get(address)
        if (actual := hashlib.sha256(data).hexdigest()) != digest:
            raise FetchError(f"{archive} has sha256 {actual}; must be {digest}")
        return data
    raise FetchError(f"{page} has no {archive}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: zstd_source.py DIRECTORY", file=sys.stderr)
        return 2
    target = Path(arguments[0])
    try:
        if not all((target / name).exists() for name in FILES):
            target.mkdir(parents=True, exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(fetch())) as archive:
                for member in archive.getmembers():
                    _, _, inside = member.name.partition("/zstd/")
                    if inside in FILES and (file := archive.extractfile(member)):
                        (target / inside).write_bytes(file.read())
    except (FetchError, OSError, ValueError) as error:
        print(f"zstd_source.py: {error}", file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
