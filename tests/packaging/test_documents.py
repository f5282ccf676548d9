"""The documents agree with the sources, and keep their form.

Generated pages are current; head dimensions, architectures, environment variables and commands are
those of the sources; pages are short, lines fit, figures name their source, and a newcomer reaches
what they need within two clicks.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import device_table
import pytest
from conftest import ROOT, source_files

GENERATED = {f"docs/benchmarks/{name}.md" for name in ("amd", "cpu", "h200", "index")}
PAGES = ["README.md", *(name for name in source_files("docs") if name.endswith(".md"))]
DASH = "\N{EN DASH}"
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def links(page: str) -> set[str]:
    """The files that a page links to, relative to the repository."""
    targets = {m.split("#")[0] for m in LINK.findall(text_of(page)) if not re.match(r"\w+:|#", m)}
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), t)) for t in targets}


@pytest.mark.parametrize("script", ["benchmarks.py", "support.py", "timelines.py"])
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/docs" / script, "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_c_api_page_can_be_written() -> None:
    sys.path.insert(0, str(ROOT / "scripts/docs"))
    import c_api

    header = (ROOT / "include/rocflash/rocflash.h").read_text()
    page = c_api.reference(ROOT / "include/rocflash/rocflash.h")
    for name in re.findall(r"^ROCFLASH_API[^;(]*?(rocflash_\w+)\(", header, re.MULTILINE):
        assert f"### {name} " in page, name


def test_the_site_is_built_strictly() -> None:
    """MkDocs does not count the warnings that --quiet hides."""
    (command,) = re.findall(r"-m mkdocs.* build.*", (ROOT / "Makefile").read_text())
    assert "--strict" in command and "quiet" not in command and "-q" not in command.split()


def test_lines_fit() -> None:
    pages = [name for name in source_files() if name.endswith(".md")]
    wide = [
        f"{page}:{n}: {len(line)}"
        for page in pages
        for n, line in enumerate(text_of(page).split("\n"), 1)
        if len(line) > 100
    ]
    assert not wide, wide


def test_pages_are_short() -> None:
    words = {page: len(text_of(page).split()) for page in PAGES if page not in GENERATED}
    assert not {page: n for page, n in words.items() if n > 2500}
    assert words["README.md"] < 1100  # two screens


def test_figures_name_their_source() -> None:
    pictures = 0
    for page in PAGES:
        text = text_of(page)
        for match in re.finditer(r"!\[[^\]]*\]\(([^)\s]+\.(?:svg|png))\)", text):
            if re.match(r"https?:|\.\./\.\./actions", match[1]):
                continue  # a badge
            before = re.split(r"^## ", text[: match.start()], flags=re.MULTILINE)[-1]
            after = re.split(r"^## ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]
            section = before + after
            assert re.search(r"Source:\s|benchmarks/results/|rocflash\.report", section), (
                page,
                match[0],
            )
            pictures += 1
    assert pictures >= 12


GOALS = [
    "docs/install.md",
    "docs/get-started.md",
    "docs/reference/python-api.md",
    "docs/reference/c-api.md",
    "docs/benchmarks/h200.md",
    "docs/benchmarks/amd.md",
    "docs/design/forward-cdna.md",
]


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_two_clicks(start: str) -> None:
    once = links(start)
    twice = set(once)
    for page in once:
        if page.endswith(".md") and (ROOT / page).exists():
            twice |= links(page)
    assert not set(GOALS) - twice


def test_every_page_is_reachable() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        name = page.removeprefix("docs/")
        directory = posixpath.dirname(name)
        listed = f"- {name}" in config or directory in ("benchmarks", "design", "notes")
        assert page == "README.md" or listed, page


def constant(name: str) -> int:
    return int(re.search(rf"\b{name} = (\d+);", (ROOT / "src/core/problem.hpp").read_text())[1])


def test_head_dimensions() -> None:
    limit = constant("max_head_dim")
    found = 0
    for page in PAGES:
        if page.startswith("docs/notes/"):
            continue  # dated
        # Tables and lists of Triton's backend have their own limit.
        for number in re.findall(
            r"[Hh]ead\s(?:dimensions?|sizes?|size)(?:\sare)?(?:\sfrom)?\s1\sto\s(\d+)",
            text_of(page),
        ):
            assert int(number) == limit, (page, number)
            found += 1
    assert found >= 3


# Named in documents because they are not supported.
NOT_SUPPORTED = {"gfx900", "gfx1010", "gfx1012", "gfx1250"}


def expanded(text: str) -> Iterator[str]:
    """gfx1030–1036 as each of them."""
    for first, last in re.findall(rf"\b(gfx\w+)(?:{DASH}(?:gfx)?(\d+))?", text):
        if not last:
            yield first
        else:
            yield from (f"gfx{n}" for n in range(int(first[3:]), int(last) + 1))


def test_architectures() -> None:
    members = {m.arch for m in device_table.members()}
    amd = {arch for arch in members if arch.startswith("gfx")}
    for page in PAGES:
        named = {a for a in expanded(text_of(page)) if re.fullmatch(r"gfx\d\w{2,3}", a)}
        assert named <= amd | NOT_SUPPORTED, (page, named - amd - NOT_SUPPORTED)
    for page in ("docs/design/kernels.md", "docs/design/simulator-isa.md", "README.md"):
        # A list may leave out the prefix after the first range.
        text = re.sub(rf", (\d{{4}}{DASH}\d{{4}})", r", gfx\1", text_of(page))
        assert amd <= set(expanded(text)), (page, amd - set(expanded(text)))


# Read for their meaning to others, or set by the tests alone.
FOREIGN = {
    "CUDA_CACHE_DISABLE", "HOME", "HSA_OVERRIDE_GFX_VERSION", "HSA_ENABLE_DXG_DETECTION",
    "KUBERNETES_SERVICE_HOST", "LOCAL_WORLD_SIZE", "NPM_CONFIG_REGISTRY", "ONEDNN_MAX_CPU_ISA",
    "PATH", "PIP_INDEX_URL", "TRITON_INTERPRET", "XDG_CACHE_HOME", "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER", "CMAKE_PREFIX_PATH",
}  # fmt: skip


def variables_read() -> dict[str, str]:
    """The environment variables that the sources read, with one file of each."""
    found: dict[str, str] = {}
    public = (ROOT / "include/rocflash/rocflash.h").read_text()
    directories = (
        "src",
        "sim",
        "cli",
        "python",
        "packaging",
        "scripts",
        "kernels/build",
        "rust",
        "benchmarks",
    )
    files = [f for directory in directories for f in source_files(directory)]
    for name in [*files, "Makefile", "build_rocm.sh"]:
        path = ROOT / name
        if (
            path.suffix in (".md", ".svg", ".gz", ".json", ".txt", ".lock", ".png")
            or "/tests/" in name
        ):
            continue
        text = path.read_text(errors="replace")
        names: set[str] = set()
        if path.suffix in (".cpp", ".hpp", ".h"):
            names = set(re.findall(r'"(ROCFLASH_[A-Z_]+)"', text))
            names = {n for n in names if not re.search(rf"\b{n}\b", public)}
        elif path.suffix == ".py":
            names = set(re.findall(r"""environ(?:\.get\(|\[)\s*["']([A-Z][A-Z_0-9]+)["']""", text))
        elif path.suffix == ".rs":
            names = set(re.findall(r'env::var(?:_os)?\("(ROCFLASH_[A-Z_]+|GPU_ARCHS)"', text))
        elif path.suffix == ".sh":
            names = set(re.findall(r"\$\{((?:ROCFLASH_|[A-Z]+_ARCH)[A-Z_]*)[:}-]", text))
        found.update((n, name) for n in names)
    return found


def test_environment_variables() -> None:
    page = text_of("docs/reference/environment.md")
    documented = set(re.findall(r"`([A-Z][A-Z_0-9]{4,})`", page))
    read = variables_read()
    assert len(read) > 30
    missing = {n: f for n, f in read.items() if n not in documented | FOREIGN}
    assert not missing, f"docs/reference/environment.md does not list {missing}"
    sources = "".join(
        (ROOT / f).read_text(errors="replace")
        for f in source_files()
        if not f.startswith(("docs/", "tests/")) and not f.endswith((".md", ".gz", ".png"))
    )
    unknown = {n for n in documented if n not in sources}
    assert not unknown, f"no source reads {unknown}"


def test_commands(build: Path) -> None:
    """Subcommands and options that documents name in code."""

    def help_of(*words: str) -> str:
        done = subprocess.run(
            [build / "bin/rocflash", *words, "--help"], capture_output=True, text=True
        )
        return done.stdout if done.returncode == 0 else ""

    listed = re.search(r"Subcommands:\n(.*)", help_of(), re.DOTALL)[1]
    lines = [m.split(", ") for m in re.findall(r"^  (\w[\w, ]*?)  ", listed, re.MULTILINE)]
    names = [name for line in lines for name in line]  # a command, then its aliases
    used: set[str] = set()
    for page in PAGES:
        if page.startswith("docs/notes/"):
            continue
        for command, rest in re.findall(r"`rocflash ([a-z]+)([^`]*)`", text_of(page)):
            assert command in names, (page, command)
            text = help_of(command)
            for option in re.findall(r"--[a-z][\w-]*", rest):
                assert option in text, (page, command, option)
            used.add(command)
    unnamed = {line[0] for line in lines} - used
    assert unnamed <= {"help", "version"}, unnamed
