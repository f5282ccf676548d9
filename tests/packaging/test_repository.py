"""REPOSITORY is the only source of the repository's address: every file that repeats it agrees, and
packages have it. Without an address nothing links to one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import wheel
from conftest import ROOT

SCRIPT = ROOT / "scripts" / "set_repository.sh"
ADDRESS = "https://git.example/group/rocflash"
CRATES = ("candle-flash-rocm", "rocflash", "rocflash-sys")
REPEATED = [
    *(f"rust/{crate}/Cargo.toml" for crate in CRATES),
    "python/flash-attn/pyproject.toml",
    "python/flash-attn-3/pyproject.toml",
    "python/flash-attn-4/pyproject.toml",
    "mkdocs.yml",
    "docs/install.md",
]
SOURCE = ["pyproject.toml", "VERSION", "rust/Cargo.toml"]


def run(source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ROCFLASH_SOURCE": str(source)}
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env=environment)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ["REPOSITORY", *SOURCE, *REPEATED]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def texts(tree: Path) -> dict[str, str]:
    return {name: (tree / name).read_text() for name in ["REPOSITORY", *REPEATED]}


def test_all_files_agree() -> None:
    checked = run(ROOT, "--check")
    assert checked.returncode == 0, checked.stderr


def test_the_address_is_set_and_removed(tree: Path) -> None:
    before = texts(tree)
    assert run(tree, f"{ADDRESS}.git").returncode == 0
    assert all(ADDRESS in text for text in texts(tree).values())
    assert run(tree, "--check").returncode == 0
    assert f"git clone {ADDRESS} rocflash" in (tree / "docs/install.md").read_text()
    other = "https://other.example/rocflash"
    assert run(tree, other).returncode == 0 and ADDRESS not in "".join(texts(tree).values())
    assert run(tree, "none").returncode == 0
    assert (tree / "REPOSITORY").read_text() == ""
    if before["REPOSITORY"] == "":
        assert texts(tree) == before


def test_a_file_that_differs_is_named(tree: Path) -> None:
    run(tree, ADDRESS)
    path = tree / "rust" / "rocflash" / "Cargo.toml"
    path.write_text(path.read_text().replace(ADDRESS, "https://elsewhere.example/x"))
    checked = run(tree, "--check")
    assert (
        checked.returncode == 1
        and "rust/rocflash/Cargo.toml differs from REPOSITORY" in checked.stderr
    )


@pytest.mark.parametrize(
    "address", ["", "rocflash", "http://x.example/y", "https://x.example", "https://x/y z"]
)
def test_invalid_addresses_are_rejected(tree: Path, address: str) -> None:
    before = texts(tree)
    done = run(tree, address)
    assert done.returncode != 0 and "usage" in done.stderr and texts(tree) == before


def test_wheels_have_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Author, license and classifiers in every wheel, links with an address only."""
    monkeypatch.setattr(wheel, "ROOT", tree)
    for path in (
        tree / "pyproject.toml",
        *(
            tree / "python" / x / "pyproject.toml"
            for x in ("flash-attn", "flash-attn-3", "flash-attn-4")
        ),
    ):
        run(tree, "none")
        without = wheel.metadata(wheel.project(path), "", version="1")
        assert (
            "Author: The rocflash authors" in without
            and "License-Expression: MIT OR Apache-2.0" in without
        )
        assert without.count("Classifier: Programming Language :: Python :: 3.") == 6
        assert "Project-URL" not in without and "https://" not in without
        run(tree, ADDRESS)
        assert f"Project-URL: Repository, {ADDRESS}" in wheel.metadata(
            wheel.project(path), "", version="1"
        )


def test_crates_have_it(tree: Path) -> None:
    """As cargo reads them."""
    run(tree, ADDRESS)
    workspace = wheel.read_toml(tree / "rust" / "Cargo.toml")["workspace"]["package"]
    assert workspace["authors"] == ["The rocflash authors"] and workspace["license"]
    for crate in CRATES:
        package = wheel.read_toml(tree / "rust" / crate / "Cargo.toml")["package"]
        assert package["repository"] == package["homepage"] == ADDRESS
        assert package["authors"] == {"workspace": True} and "documentation" not in package


def test_readmes_of_packages_link_to_no_page_of_their_own() -> None:
    """They are shown by registries, which do not have this tree."""
    for path in (
        *ROOT.glob("python/**/README.md"),
        ROOT / "python" / "README.md",
        *ROOT.glob("rust/*/README.md"),
    ):
        for target in re.findall(r"\]\(([^)]*)\)", path.read_text()):
            assert target.startswith(("https://", "#")), f"{path}: {target}"
            assert not re.search(r"(pypi\.org|docs\.rs|crates\.io)/.*rocflash", target), (
                f"{path}: {target}"
            )


def test_the_published_address_is_that_of_the_workflow() -> None:
    """Wheels of a release link to the repository that built them."""
    for name, count in (("build.yml", 2), ("_build_rocm.yml", 1)):
        text = (ROOT / ".github" / "workflows" / name).read_text()
        assert (
            text.count('scripts/set_repository.sh "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"') == count
        ), name
