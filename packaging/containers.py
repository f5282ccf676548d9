#!/usr/bin/env python3
"""The container images of the workflows, by digest: a tag can be moved, a digest cannot.

containers.json has them. Whatever is built runs in an image whose digest is there. An image without one (null) is used by
its tag, and only where a finished wheel is tried: that job has no rights to write and hands nothing on.

    containers.py           print each image as the workflows name it
    containers.py --pin     ask the registry for today's digests, write them into containers.json and into the workflows
    containers.py --check   ask the registry whether each digest is still there; exit status 1 if one is not
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
# The index of all architectures first: its digest is what `docker pull` shows.
KINDS = ", ".join(
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
    """The image with its digest, or as it is where there is none. An image that is not in the table is an error."""
    digest = digests()[image]
    return f"{image}@{digest}" if digest else image


def ask(image: str, reference: str, registry: str, tokens: str) -> str:
    """The digest that the registry has for a tag or a digest of an image."""
    name = image.rpartition(":")[0]
    repository = name if "/" in name else f"library/{name}"
    headers = {"Accept": KINDS}
    if tokens:
        with urllib.request.urlopen(tokens.format(repository), timeout=30) as answer:
            headers["Authorization"] = "Bearer " + json.load(answer)["token"]
    request = urllib.request.Request(
        f"{registry}/v2/{repository}/manifests/{reference}", headers=headers, method="HEAD"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        digest = answer.headers["Docker-Content-Digest"] or ""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{image}: the registry answers with digest {digest!r}")
    return digest


def write(table: dict[str, str | None]) -> None:
    TABLE.write_text(json.dumps(table, indent=2) + "\n")
    for path in WORKFLOWS.glob("*.yml"):
        text = path.read_text()
        for image, digest in table.items():
            if digest:
                text = re.sub(re.escape(image) + r"@sha256:[0-9a-f]{64}", f"{image}@{digest}", text)
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    todo = parser.add_mutually_exclusive_group()
    todo.add_argument("--pin", action="store_true", help="write today's digests")
    todo.add_argument("--check", action="store_true", help="look whether the digests are there")
    parser.add_argument("--registry", default=REGISTRY, help="where the images are")
    parser.add_argument("--tokens", default=TOKENS, help='where tokens come from; "" needs none')
    told = parser.parse_args()
    table = digests()
    missing = 0
    for image, digest in table.items():
        try:
            if told.pin:
                table[image] = ask(image, image.rpartition(":")[2], told.registry, told.tokens)
            elif told.check and digest:
                ask(image, digest, told.registry, told.tokens)
        except (urllib.error.URLError, ValueError, KeyError) as error:
            print(f"containers.py: {image}: {error}", file=sys.stderr)
            missing += 1
        if not told.check:
            print(f"{image}@{table[image]}" if table[image] else f"{image} (by its tag)")
    if missing:
        return 1
    if told.pin:
        write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
