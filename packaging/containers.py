#!/usr/bin/env python3
"""Manages the container images of the workflows by digest: a tag can be moved, a digest cannot.

containers.json has the images. Every build runs in an image with a digest. An image without one
(null) is used by its tag, and only to test a finished wheel: that job has no write permission and
produces no artifacts.

    containers.py           prints each image as the workflows name it
    containers.py --pin     queries the registry for the current digests, writes them to
                            containers.json, the workflows and the Dockerfile
    containers.py --check   queries the registry for each digest; exit status 1 if one is missing
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

TABLE = Path(__file__).with_name("containers.json")
WORKFLOWS = Path(__file__).parents[1] / ".github" / "workflows"
REGISTRY = "https://registry-1.docker.io"
TOKENS = "https://auth.docker.io/token?service=registry.docker.io&scope=repository:{}:pull"
# The multi-architecture index comes first: `docker pull` shows its digest.
MEDIA_TYPES = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


def digests() -> dict[str, str | None]:
    return json.loads(TABLE.read_text())


def pinned(image: str) -> str:
    """The image with its digest, or with its tag if it has none. Raises KeyError if unknown."""
    digest = digests()[image]
    return f"{image}@{digest}" if digest else image


def query_digest(image: str, reference: str, registry: str, tokens: str) -> str:
    """The digest of an image in the registry, by tag or digest."""
    name = image.rpartition(":")[0]
    repository = name if "/" in name else f"library/{name}"
    headers = {"Accept": MEDIA_TYPES}
    if tokens:
        with urllib.request.urlopen(tokens.format(repository), timeout=30) as response:
            headers["Authorization"] = "Bearer " + json.load(response)["token"]
    request = urllib.request.Request(
        f"{registry}/v2/{repository}/manifests/{reference}", headers=headers, method="HEAD"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        digest = response.headers["Docker-Content-Digest"] or ""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{image}: the registry returned the digest {digest!r}")
    return digest


def write(table: dict[str, str | None]) -> None:
    TABLE.write_text(json.dumps(table, indent=2) + "\n")
    dockerfile = TABLE.parents[1] / "Dockerfile"
    for path in [*WORKFLOWS.glob("*.yml"), *([dockerfile] if dockerfile.exists() else [])]:
        text = path.read_text()
        for image, digest in table.items():
            if digest:
                text = re.sub(re.escape(image) + r"@sha256:[0-9a-f]{64}", f"{image}@{digest}", text)
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--pin", action="store_true", help="write the current digests")
    mode.add_argument("--check", action="store_true", help="check that the digests exist")
    parser.add_argument("--registry", default=REGISTRY, help="URL of the registry")
    parser.add_argument("--tokens", default=TOKENS, help='URL of the token service; "" for none')
    options = parser.parse_args()
    table = digests()
    missing = 0
    for image, digest in table.items():
        try:
            if options.pin:
                table[image] = query_digest(
                    image, image.rpartition(":")[2], options.registry, options.tokens
                )
            elif options.check and digest:
                query_digest(image, digest, options.registry, options.tokens)
        except (urllib.error.URLError, ValueError, KeyError) as error:
            print(f"containers.py: {image}: {error}", file=sys.stderr)
            missing += 1
        if not options.check:
            print(f"{image}@{table[image]}" if table[image] else f"{image} (by tag)")
    if missing:
        return 1
    if options.pin:
        write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
