"""The examples of docs/design/extend*.md compile for every family and for the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import library
import pytest
from conftest import ROOT

COMPILER = shutil.which("clang++-22") or "/usr/lib/llvm-22/bin/clang++"


def blocks(page: str, title: str) -> dict[tuple[str, str], str]:
    """A section's code by kind and file."""
    text = (ROOT / "docs/design" / page).read_text()
    section = text.split(f"# {title}\n")[1].split("\n## ")[0]
    found = re.findall(r"^   ```(\w+) (\S+)\n(.*?)^   ```$", section, re.MULTILINE | re.DOTALL)
    return {(kind, name): textwrap.dedent(code) for kind, name, code in found}


def insert(path: Path, before: str, code: str) -> None:
    text = path.read_text()
    assert before in text, f"{path}: {before}"
    path.write_text(text.replace(before, f"{code}\n{before}", 1))


def apply_diff(path: Path, diff: str) -> None:
    """Replaces the lines marked - by the lines marked +; hunks are separated by an empty line."""
    for hunk in diff.strip("\n").split("\n\n"):
        old, new = (
            "".join(f"{x[1:]}\n" for x in hunk.splitlines() if x[0] == sign) for sign in "-+"
        )
        text = path.read_text()
        assert old and text.count(old) == 1, f"{path}: {old}"
        path.write_text(text.replace(old, new))


def kernel_flags(tree: Path, vendor: str, target: str, version: str) -> list[str]:
    flags = ["-ffreestanding", "-fno-exceptions", "-fno-rtti", "-nogpulib"]
    flags += ["-isystem", str(tree / "kernels/freestanding")]
    if vendor == "amd":
        return [
            *flags,
            "--target=amdgcn-amd-amdhsa",
            f"-mcpu={target}",
            f"-mcode-object-version={version}",
        ]
    flags += ["--target=nvptx64-nvidia-cuda", f"-march={target}"]
    return [*flags, "-Xclang", "-target-feature", "-Xclang", f"+ptx{version}"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("kernels", "src", "include"):
        shutil.copytree(ROOT / name, tmp_path / name)
    code = blocks("extend.md", "Add an operation")
    assert len(code) == 9
    for (kind, name), text in code.items():
        path = tmp_path / name
        if kind == "cpp":
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif kind == "inc":
            for line in text.splitlines():
                insert(path, f"#undef {line.split('(')[0]}\n", line)
        elif kind == "case":
            insert(path, "    case Op::weights:\n", text)
            insert(path, '#include "table/weights.hpp"', '#include "table/key_sums.hpp"')
        elif kind == "cmake":  # refers to functions and targets of the existing tree
            existing = (ROOT / name).read_text()
            assert "function(rocflash_simulated_test" in existing
            assert "rocflash_test(NAME" in text and "rocflash_sim_hip" in existing
        elif kind == "arguments":
            insert(
                path,
                "template <Op op, Schedule schedule = Schedule::tiled>\nusing ArgumentsOf",
                text,
            )
    return tmp_path


def families() -> list[tuple[str, str, str, str, str]]:
    """Id, vendor, layer, target and version of the families in the set `all`."""
    text = (ROOT / "kernels/table/families.inc").read_text()
    additions = re.findall(r"^ROCFLASH_FAMILY_EXTENSION\((\w+),", text, re.MULTILINE)
    line = r'^ROCFLASH_FAMILY\((\w+), *"\w+", *(\w+), *\d+, *"(\S+)", *([\w-]+), *(\d+)\)'
    return [f for f in re.findall(line, text, re.MULTILINE) if f[0] not in additions]


@pytest.mark.skipif(not library.has_kernel_compiler(), reason="kernels need clang 22")
def test_the_example_compiles(tree: Path) -> None:
    common = ["-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    common += [f"-I{tree / name}" for name in ("kernels", "src", "include")]

    def compile_as(source: Path, *flags: str) -> None:
        result = subprocess.run(
            [COMPILER, *flags, *common, "-O1", "-S", source, "-o", os.devnull],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr

    assert len(families()) >= 7
    for family, vendor, layer, target, version in families():
        unit = tree / f"{family}.cpp"
        unit.write_text(
            f"#define ROCFLASH_THIS_FAMILY {family}\n"
            f'#define ROCFLASH_ARCH_HEADER "{layer}"\n'
            '#define ROCFLASH_SCHEDULE_HEADER "key_sums/rows.hpp"\n'
            '#include "entry/entry.hpp"\n'
            "ROCFLASH_ENTRY(key_sums_f16, key_sums, key_sums, tiled, f16, 0, any)\n"
            "ROCFLASH_ENTRY(key_sums_bf16, key_sums, key_sums, tiled, bf16, 0, any)\n"
        )
        compile_as(unit, *kernel_flags(tree, vendor, target, version))
    for source in ("src/gpu/plan/key_sums.cpp", "tests/gpu/key_sums_test.cpp"):
        compile_as(tree / source, "-Wno-missing-field-initializers", "-Wno-global-constructors")


@pytest.mark.skipif(not library.has_kernel_compiler(), reason="kernels need clang 22")
def test_a_score_modifier_is_added_as_described(tmp_path: Path) -> None:
    for name in ("kernels", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    code = blocks("extend-score-mod.md", "Add a score modifier")
    assert len(code) == 5
    for (kind, name), text in code.items():
        path = tmp_path / name
        if kind == "diff":
            apply_diff(path, text)
            continue
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    includes = [f"-I{tmp_path / name}" for name in ("kernels", "src")]
    common = [COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", *includes]
    program = tmp_path / "clip_test"
    source = tmp_path / "tests/kernels/attention/clip_test.cpp"
    subprocess.run([*common, source, "-o", program], check=True)
    subprocess.run([program], check=True)

    schedules = {
        "amd": {"forward": "forward/amd_double_buffered.hpp", "backward_dq": "backward/amd_dq.hpp"},
        "nvidia": {"forward": "forward/sm80.hpp", "backward_dq": "backward/sm80_dq.hpp"},
    }
    tested = {family: rest for family, *rest in families() if family in ("rdna3", "sm80")}
    assert len(tested) == 2
    for family, (vendor, layer, target, version) in tested.items():
        for operation, schedule in schedules[vendor].items():
            unit = tmp_path / f"{family}_{operation}.cpp"
            unit.write_text(
                f"#define ROCFLASH_THIS_FAMILY {family}\n"
                f'#define ROCFLASH_ARCH_HEADER "{layer}"\n'
                f'#define ROCFLASH_SCHEDULE_HEADER "{schedule}"\n'
                '#include "entry/entry.hpp"\n'
                f"ROCFLASH_ENTRY({operation}_f16_64_generic, {operation}, {operation}, tiled, "
                "f16, 64, generic)\n"
            )
            flags = kernel_flags(tmp_path, vendor, target, version)
            subprocess.run([*common, *flags, "-O1", "-S", unit, "-o", os.devnull], check=True)
    selection = tmp_path / "src/gpu/dispatch/features.cpp"
    subprocess.run([*common, "-fsyntax-only", selection], check=True)


def test_paths_in_the_documents_exist() -> None:
    missing = []
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        text = (ROOT / name).read_text()
        paths = re.findall(
            r"`((?:benchmarks|cli|docs|examples|include|kernels|packaging|python|scripts|sim|src|tests|verify)/[\w./-]+)`",
            text,
        )
        # A workflow's badge is a page of the repository's host.
        prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
        links = re.findall(r"\]\((?!\w+:|\.\./\.\./actions/)([^)#]+)", prose)
        missing += [f"{name}: {p}" for p in paths if not (ROOT / p).exists()]
        missing += [f"{name}: {p}" for p in links if not (ROOT / name).parent.joinpath(p).exists()]
    assert not missing, missing


def test_names_in_the_design_pages_exist() -> None:
    """Sources without their directory, and identifiers. Not in the pages that extend the library,
    which name what their reader writes."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = {"/" + name for name in listed}
    words = set(re.findall(r"\w+", " ".join(listed)))
    for name in listed:
        if re.search(r"(\.([ch]pp|[ch]|inc|py|sh|json)|Makefile|CMakeLists\.txt)$", name):
            words.update(re.findall(r"[A-Za-z_]\w*", (ROOT / name).read_text()))
    # Instructions (type suffixes follow a dot), test programs that CMake names, a file of LLVM.
    foreign = re.compile(r"(v|s|ds|scratch|global|read)_|sim_\w+_test$|SIISelLowering")
    missing = []
    for page in sorted((ROOT / "docs/design").glob("*.md")):
        if page.name.startswith("extend"):
            continue
        for span in re.findall(r"`([^`\n]+)`", page.read_text()):
            if re.fullmatch(r"[\w./-]+\.([ch]pp|inc|py|sh)", span):
                if not foreign.match(span) and not any(f.endswith("/" + span) for f in files):
                    missing.append(f"{page.name}: {span}")
            elif "*" not in span:
                missing += [
                    f"{page.name}: {word}"
                    for word in re.findall(r"[A-Za-z]\w*", span)
                    if ("::" in span or re.search("_|[a-z][A-Z]", word))
                    and word not in words
                    and not foreign.match(word)
                ]
    assert not missing, missing
