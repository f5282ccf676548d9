"""The example of docs/kernels.md, added to a copy of the tree as the page says, compiles for every family and for the host."""

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


def blocks() -> dict[tuple[str, str], str]:
    """The section's code by kind and file."""
    text = (ROOT / "docs/kernels.md").read_text()
    section = text.split("## Add an operation\n")[1].split("\n## ")[0]
    found = re.findall(r"^   ```(\w+) (\S+)\n(.*?)^   ```$", section, re.MULTILINE | re.DOTALL)
    return {(kind, name): textwrap.dedent(code) for kind, name, code in found}


def insert(path: Path, before: str, code: str) -> None:
    text = path.read_text()
    assert before in text, f"{path}: {before}"
    path.write_text(text.replace(before, f"{code}\n{before}", 1))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("kernels", "src", "include"):
        shutil.copytree(ROOT / name, tmp_path / name)
    code = blocks()
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
            insert(path, "    case Operation::weights:\n", text)
            insert(path, '#include "table/weights.hpp"', '#include "table/key_sums.hpp"')
        elif kind == "cmake":  # for the tree as it is: what it refers to is there
            text_there = (ROOT / name).read_text()
            assert "function(rocflash_simulated_test" in text_there
            assert "rocflash_test(NAME" in text and "rocflash_sim_hip" in text_there
        elif kind == "arguments":
            insert(path, "template <Operation operation>\nusing ArgumentsOf", text)
    return tmp_path


def families() -> list[tuple[str, str, str, str, str]]:
    """Id, vendor, layer, target and version, of those that are in the set `all`."""
    text = (ROOT / "kernels/table/families.inc").read_text()
    additions = re.findall(r"^ROCFLASH_ADDITION\((\w+),", text, re.MULTILINE)
    line = r'^ROCFLASH_FAMILY\((\w+), *"\w+", *(\w+), *\d+, *"(\S+)", *([\w-]+), *(\d+)\)'
    return [f for f in re.findall(line, text, re.MULTILINE) if f[0] not in additions]


@pytest.mark.skipif(not library.has_kernel_compiler(), reason="kernels are for clang 22")
def test_the_example_compiles(tree: Path) -> None:
    common = ["-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    common += [f"-I{tree / name}" for name in ("kernels", "src", "include")]

    def compile_as(source: Path, *flags: str) -> None:
        told = subprocess.run(
            [COMPILER, *flags, *common, "-O1", "-S", source, "-o", os.devnull],
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stderr

    assert len(families()) >= 7
    for family, vendor, layer, target, version in families():
        unit = tree / f"{family}.cpp"
        unit.write_text(
            f"#define ROCFLASH_THIS_FAMILY {family}\n"
            f'#define ROCFLASH_ARCH_HEADER "{layer}"\n'
            '#define ROCFLASH_SCHEDULE_HEADER "key_sums/rows.hpp"\n'
            '#include "entry/entry.hpp"\n'
            "ROCFLASH_ENTRY(key_sums_f16, key_sums, f16, 0, any)\n"
            "ROCFLASH_ENTRY(key_sums_bf16, key_sums, bf16, 0, any)\n"
        )
        freestanding = ["-ffreestanding", "-fno-exceptions", "-fno-rtti", "-nogpulib"]
        freestanding += ["-isystem", str(tree / "kernels/freestanding")]
        if vendor == "amd":
            flags = ["--target=amdgcn-amd-amdhsa", f"-mcpu={target}"]
            flags.append(f"-mcode-object-version={version}")
        else:
            flags = ["--target=nvptx64-nvidia-cuda", f"-march={target}"]
            flags += ["-Xclang", "-target-feature", "-Xclang", f"+ptx{version}"]
        compile_as(unit, *flags, *freestanding)
    for source in ("src/gpu/plan/key_sums.cpp", "tests/gpu/key_sums_test.cpp"):
        compile_as(tree / source, "-Wno-missing-field-initializers", "-Wno-global-constructors")
