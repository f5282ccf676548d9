"""The Dockerfile, without a container engine: linted, pinned, and its arguments exist."""

from __future__ import annotations

import re
import subprocess

import containers
import pytest
import versions
from conftest import ROOT

TEXT = (ROOT / "Dockerfile").read_text()


def test_hadolint() -> None:
    done = subprocess.run([ROOT / "scripts" / "hadolint.sh"], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


def test_base_images_are_pinned() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\w+)$", TEXT, re.MULTILINE)
    assert [name for _, name in stages] == ["wheels", "python", "cpu", "rocm"]
    for image, _ in stages[:2]:
        name, _, digest = image.partition("@")
        assert containers.digests()[name] == digest
    assert {image for image, _ in stages[2:]} == {"python"}


def test_torch_exists_for_this_rocm() -> None:
    torch, rocm = (
        re.findall(rf"^ARG {name}=(\S+)$", TEXT, re.MULTILINE) for name in ("TORCH", "ROCM")
    )
    assert len(set(torch)) == 1
    assert rocm[0] in versions.rocm_of(torch[0].rpartition(".")[0])
    base = re.search(r"^FROM debian:(\w+)", TEXT, re.MULTILINE)
    assert base and base[1] == "bookworm", "Python 3.11, which torch has wheels for"


def test_options_are_those_of_this_project() -> None:
    cmake = "".join((ROOT / path).read_text() for path in ("CMakeLists.txt", "cmake/Kernels.cmake"))
    for option in set(re.findall(r"-D(ROCFLASH_\w+)", TEXT)):
        assert option in cmake, option
    for script in re.findall(r"(?:scripts|packaging)/\w+\.\w+", TEXT):
        assert (ROOT / script).exists(), script


def test_the_context_has_sources_alone() -> None:
    """What git ignores at the root is not sent to the engine either."""
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    for name in ("build", "build-*", "dist", "rust/target", ".git"):
        assert name in ignored, name
    for name in ("REPOSITORY", "VERSION", "scripts", "packaging"):
        assert name not in ignored
