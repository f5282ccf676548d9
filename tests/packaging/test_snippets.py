"""Every code block of the README and of the pages for users is run, compiled or checked.

Python blocks of a page run in order, in one process, on the CPU. C blocks are compiled. Complete
programs must be files that other tests run. Of shell commands the programs, targets, files and
options must exist. A block of another language, a program that is not listed and an output that is
not listed fail.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/get-started.md", "docs/install.md"]
PAGES += ["docs/packaging.md", "docs/releasing.md", "docs/design/simulator.md"]
PAGES += ["python/README.md", "python/flash-attn/README.md", "python/flash-attn-3/README.md"]
PAGES += sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs/guides").glob("*.md"))


class Block(NamedTuple):
    page: str
    language: str
    code: str


def blocks(*languages: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for _, language, code in re.findall(
            r"^( *)```([^\n]*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL
        ):
            if not languages or language in languages:
                found.append(Block(page, language, textwrap.dedent(code)))
    return found


# Outputs that pages show: their first lines.
OUTPUTS = {
    "docs/get-started.md": ["390 of 390 cases passed"],
    "docs/install.md": ["rocflash 0.1.0"],
    "docs/design/simulator.md": ["{"],  # a launch description
    "docs/guides/sglang.md": ["Using rocflash (ROCFLASH_SGLANG_DEFAULT=1).", "rocflash not used: "],
    "docs/guides/vllm.md": [
        "Using ROCFLASH attention backend (ROCFLASH_VLLM_DEFAULT=1).",
        "ROCFLASH attention backend not used: ",
    ],
    "docs/guides/c-cpp.md": ["ROCFLASH_INVALID_ARGUMENT: k: 3 heads"],
}


def test_every_block_has_a_known_language() -> None:
    known = {"python", "c", "cpp", "cmake", "rust", "sh", "text"}
    assert not [(b.page, b.language) for b in blocks() if b.language not in known]
    for page in PAGES:
        shown = [b.code.split("\n")[0] for b in blocks("text") if b.page == page]
        expected = OUTPUTS.get(page, [])
        assert len(shown) == len(expected), (page, shown)
        assert all(line.startswith(e) for line, e in zip(shown, expected)), (page, shown)


# What a page's Python blocks need from the reader's program.
PRELUDES = {
    "docs/guides/gpu.md": """
        import torch, rocflash
        q, rows = torch.randn(1, 2, 16, 576), torch.randn(4, 16, 1, 576)
        table = torch.tensor([[2, 0]], dtype=torch.int32)
        used = torch.tensor([20], dtype=torch.int32)
        """,
    "docs/guides/transformers.md": """
        import tempfile
        from transformers import LlamaConfig, LlamaForCausalLM
        name = tempfile.mkdtemp()
        config = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32,
                             num_hidden_layers=1, num_attention_heads=2)
        LlamaForCausalLM(config).save_pretrained(name)
        """,
    "docs/guides/diffusion.md": """
        import types
        from diffusers import FluxTransformer2DModel
        pipe = types.SimpleNamespace(transformer=FluxTransformer2DModel(
            in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
            axes_dims_rope=(4, 4, 8)))
        """,
    "docs/guides/distributed.md": """
        import tempfile, torch
        import torch.distributed as dist
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        store = "file://" + tempfile.mktemp()
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        group, length = dist.group.WORLD, 8
        name = tempfile.mkdtemp()
        config = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32,
                             num_hidden_layers=1, num_attention_heads=2)
        LlamaForCausalLM(config).save_pretrained(name)
        tokens = torch.randint(32, (1, length))
        q, k, v = (torch.randn(1, length, 2, 16) for _ in range(3))
        targets, position_ids = tokens.clone(), torch.arange(length)[None]
        """,
}


def environment(build: Path) -> dict[str, str]:
    paths = [
        ROOT / "python",
        ROOT / "python/flash-attn",
        ROOT / "python/flash-attn-3",
        ROOT / "python/flash-attn-4",
    ]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "ROCFLASH_LIBRARY": str(build / "lib/librocflash.so"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.parametrize("page", sorted({b.page for b in blocks("python")}))
def test_python(page: str, build: Path) -> None:
    parts = [textwrap.dedent(PRELUDES.get(page, ""))]
    parts += [b.code for b in blocks("python") if b.page == page]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)], env=environment(build), capture_output=True,
        text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# Declarations that C blocks refer to; a block may declare its own.
C_PRELUDE = """
#include <rocflash/rocflash.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern DLTensor q, k, v, out, lse, dout, dq, dk, dv, table, used, k_new, v_new, cosines, sines;
extern DLTensor begins_tensor;
extern rocflash_problem problem;
extern rocflash_forward_outputs outputs;
extern rocflash_execution execution;
extern void *stream, *memory_on_the_gpu;
"""
COMPLETE = {
    "c": ["examples/attention.c"],
    "cpp": ["examples/attention.cpp"],
    "rust": ["rust/candle-flash-rocm/examples/flash_attn.rs"],
}


def is_complete(block: Block) -> bool:
    return any(block.code == (ROOT / file).read_text() for file in COMPLETE[block.language])


def test_complete_programs_are_the_examples() -> None:
    assert all(is_complete(b) for b in blocks("cpp", "rust"))
    assert sum(is_complete(b) for b in blocks("c")) == 1


def test_c(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("clang-22")
    assert compiler
    program = C_PRELUDE
    for n, block in enumerate(b for b in blocks("c") if not is_complete(b)):
        program += f"void block{n}(void);\nvoid block{n}(void) {{\n{block.code}}}\n"
    assert n >= 10
    source = tmp_path / "blocks.c"
    source.write_text(program)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-fsyntax-only"]
    flags += ["-Wno-unused-but-set-variable"]
    done = subprocess.run(
        [compiler, *flags, f"-I{ROOT / 'include'}", source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_cmake_is_that_of_the_install_test() -> None:
    (block,) = blocks("cmake")
    assert block.page == "docs/guides/c-cpp.md"
    assert block.page in (ROOT / "tests/install/guide_programs.cmake").read_text()


# Programs of others: their options are not checked.
EXTERNAL = {
    "pip",
    "uv",
    "source",
    "sudo",
    "nix",
    "rustup",
    "cargo",
    "export",
    "bash",
    "cc",
    "ctest",
    "git",
    "ninja",
    "sha256sum",
    "twine",
    "./a.out",
}


def commands(block: Block) -> list[list[str]]:
    """The words of each command, without comments and variables."""
    text = block.code.replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        for part in line.split("&&"):
            words = shlex.split(re.sub(r"\$\([^)]*\)", "", part), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if words:
                found.append(words)
    return found


def problem_of(words: list[str], build: Path) -> str:
    """What is wrong with a command, or nothing."""
    program, rest = words[0], words[1:]
    options = {word.split("=")[0] for word in rest if word.startswith("--") and word != "--"}
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        unknown = [w for w in rest if "=" not in w and w not in targets]
        return f"no target {unknown}" if unknown else ""
    if program.endswith("rocflash"):
        done = subprocess.run(
            [build / "bin/rocflash", rest[0], "--help"], capture_output=True, text=True
        )
        if done.returncode != 0:
            return f"no command {rest[0]}"
        unknown = sorted(o for o in options if o not in done.stdout)
        return f"no option {unknown}" if unknown else ""
    if words == ["python", "main.py", "--use-flash-attention"]:
        return ""  # ComfyUI's program
    if program in ("python", "python3") and rest[0] != "-m":
        source = ROOT / rest[0]
        if not source.exists():
            return f"no file {rest[0]}"
        unknown = sorted(o for o in options if f'"{o}"' not in source.read_text())
        return f"no option {unknown}" if unknown else ""
    if program in ("python", "python3"):
        module = rest[1].replace(".", "/")
        roots = [
            ROOT / p
            for p in ("python", "python/flash-attn", "python/flash-attn-3", "python/flash-attn-4")
        ]
        files = [f"{module}.py", f"{module}/__main__.py"]
        found = any((root / file).exists() for root in roots for file in files)
        return "" if found else f"no module {rest[1]}"
    if program.startswith("scripts/") or program.startswith("packaging/"):
        if not os.access(ROOT / program, os.X_OK):
            return "is not a command"
        unknown = sorted(o for o in options if o not in (ROOT / program).read_text())
        return f"no option {unknown}" if unknown else ""
    if program == "./build_rocm.sh":
        done = subprocess.run(
            ["./build_rocm.sh", *rest, "--dry-run"], cwd=ROOT, capture_output=True, text=True
        )
        return done.stderr if done.returncode else ""
    if program == "cmake" and rest[0] == "-S":
        return "" if (ROOT / rest[1] / "CMakeLists.txt").exists() else f"no directory {rest[1]}"
    if program == "cmake" and rest[0] == "--build" and "--preset" not in rest:
        return ""
    if program == "cmake":
        presets = (ROOT / "CMakePresets.json").read_text()
        named = rest[rest.index("--preset") + 1] if "--preset" in rest else "debug"
        return "" if f'"{named}"' in presets else f"no preset {named}"
    if program in ("vllm", "sglang"):
        registered = "".join(
            p.read_text() for p in (ROOT / "python/rocflash/integrations").rglob("*.py")
        )
        if "--attention-backend" not in rest:  # ROCFLASH_VLLM_DEFAULT, ROCFLASH_SGLANG_DEFAULT
            variable = f"ROCFLASH_{program.upper()}_DEFAULT"
            return "" if f'"{variable}"' in registered else f"no variable {variable}"
        name = rest[rest.index("--attention-backend") + 1]
        return "" if f'"{name}"' in registered else f"no backend {name}"
    if program in EXTERNAL:
        files = [w for w in rest if re.fullmatch(r"(examples|scripts|packaging|python)/\S+", w)]
        missing = [f for f in files if not (ROOT / f).exists()]
        return f"no file {missing}" if missing else ""
    return f"{program} is not a program that this test knows"


def test_shell_commands(build: Path) -> None:
    wrong = []
    for block in blocks("sh"):
        for words in commands(block):
            if problem := problem_of(words, build):
                wrong.append(f"{block.page}: {shlex.join(words)}: {problem}")
    assert not wrong, "\n".join(wrong)
