"""The programs of examples/ and benchmarks' wrappers that users run, on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "serve.py": ("--cache", "float16", "--requests", "6"),
    "transformers_model.py": (),
    "finetune.py": ("--steps", "12"),
    "diffusers_model.py": ("--steps", "2"),
}
ELSEWHERE = {"train_long.py": "test_distributed_integration.py"}


def test_every_example_is_run() -> None:
    found = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert found == {*PROGRAMS, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert name in (Path(__file__).parent / test).read_text(), name
    lists = (ROOT / "examples" / "CMakeLists.txt").read_text()
    for path in (ROOT / "examples").glob("[!.]*.c*"):
        assert path.name in lists or f"{path.stem}.${{suffix}}" in lists, path.name


@pytest.mark.parametrize(("name", "words"), PROGRAMS.items(), ids=list(PROGRAMS))
def test_program(name: str, words: tuple[str, ...]) -> None:
    """Each compares its result with another implementation's, and its exit status says so."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *words], capture_output=True, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


@pytest.fixture(scope="module")
def node() -> ModuleType:
    path = ROOT / "examples" / "comfyui_rocflash" / "__init__.py"
    spec = importlib.util.spec_from_file_location("comfyui_rocflash", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def comfyui_attention(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False,
                      skip_output_reshape=False, **kwargs):  # fmt: skip
    """What ComfyUI's attention functions compute, by torch."""
    if not skip_reshape:
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        mask = mask[None, None] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=kwargs.get("scale"), enable_gqa=True
    )
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("shape", ["flat", "heads"])
@pytest.mark.parametrize("mask", [None, (9, 12), (2, 9, 12), (2, 4, 9, 12)], ids=str)
@pytest.mark.parametrize("kind", [bool, float])
def test_comfyui_node(
    node: ModuleType, shape: str, mask: tuple[int, ...] | None, kind: type
) -> None:
    by_heads = shape == "heads"
    q, k, v = (torch.randn((2, 4, n, 16) if by_heads else (2, n, 64)) for n in (9, 12, 12))
    masked = None
    if mask is not None:
        masked = torch.randn(mask) if kind is float else torch.rand(mask) > 0.3
        if kind is bool:
            masked[..., 0] = True
    model = SimpleNamespace(model_options={"transformer_options": {"patches": {}}})
    model.clone = lambda: SimpleNamespace(model_options=dict(model.model_options))
    (patched,) = node.NODE_CLASS_MAPPINGS["RocflashAttention"]().patch(model)
    assert "optimized_attention_override" not in model.model_options["transformer_options"]
    options = patched.model_options["transformer_options"]
    assert options["patches"] == {}
    # As ComfyUI's wrapper calls it.
    arguments = {"mask": masked, "skip_reshape": by_heads, "skip_output_reshape": by_heads}
    arguments |= {"transformer_options": options, "_inside_attn_wrapper": True, "scale": 0.2}
    found = options["optimized_attention_override"](comfyui_attention, q, k, v, 4, **arguments)
    torch.testing.assert_close(
        found, comfyui_attention(q, k, v, 4, **arguments), rtol=1e-4, atol=1e-5
    )


def test_comfyui_node_rejects_unknown_options(node: ModuleType) -> None:
    q = torch.randn(1, 5, 32)
    with pytest.raises(TypeError, match="sparsity"):
        node.attention(comfyui_attention, q, q, q, 2, sparsity=0.5)
