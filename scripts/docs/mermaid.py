"""Mermaid for the site, from npm's registry by hash, once into the user's cache.

Diagrams are drawn in the browser; the site brings the script, so that it needs no other host.
NPM_CONFIG_REGISTRY names another registry.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path

VERSION = "11.9.0"
SHA512 = "YdPXn9slEwO0omQfQIsW6vS84weVQftIyyTGAZCwM//MGhPzL1+l6vO6bkf0wnP4tHigH1alZ5Ooy3HXI2gOag=="
FILE = "package/dist/mermaid.min.js"


def cached() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "rocflash" / f"mermaid-{VERSION}.min.js"


def script() -> bytes:
    """The text of mermaid.min.js."""
    path = cached()
    if path.exists():
        return path.read_bytes()
    registry = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
    url = f"{registry.rstrip('/')}/mermaid/-/mermaid-{VERSION}.tgz"
    with urllib.request.urlopen(url, timeout=120) as response:
        archive = response.read()
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != SHA512:
        raise RuntimeError(f"{url} has the SHA-512 {found}; it must be {SHA512}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as unpacked:
        member = unpacked.extractfile(FILE)
        if member is None:
            raise RuntimeError(f"{url} has no {FILE}")
        text = member.read()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(text)
    temporary.replace(path)
    return text
