"""The layers of the package: each imports only lower ones, and flash-attn imports one interface."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rocflash
from rocflash import dropin
from rocflash._arrays import calls as array_calls
from rocflash._c.options import NAMES, Options

PYTHON = Path(__file__).parents[2] / "python"
# What each part of the package may import of it; the public modules may import everything.
BELOW = {
    "_c": {"errors", "_c"},
    "_arrays": {"errors", "_c"},
    "_backends": {"errors", "_c"},
    "_torch": {"errors", "_c", "_backends"},
}
PUBLIC = {
    "__main__", "_command", "attention", "decode", "distributed", "doctor", "dropin", "errors",
    "explain", "info",
    "integrations", "jax", "prove", "report", "sdpa", "self_test",
}  # fmt: skip


def imported(path: Path) -> Iterator[str]:
    """Absolute names of what a file imports of rocflash."""
    package = path.relative_to(PYTHON).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("rocflash"))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.split(".")[0] == "rocflash":
                yield from (f"{module}.{alias.name}" for alias in node.names)


def test_layers_import_only_lower_layers() -> None:
    recorded = 0
    for layer, allowed in BELOW.items():
        for path in (PYTHON / "rocflash" / layer).rglob("*.py"):
            for name in imported(path):
                part = name.split(".")[1]
                assert part in {*allowed, layer}, f"{path.name} imports {name}"
                recorded += 1
    assert recorded > 40
    here = {path.stem for path in (PYTHON / "rocflash").iterdir()} - {"__init__", "__pycache__"}
    assert here - {"lib", "bin", "py"} == {*BELOW, *PUBLIC}


def test_flash_attn_imports_one_interface() -> None:
    paths = list((PYTHON / "flash-attn").rglob("*.py"))
    assert len(paths) > 15
    for path in paths:
        for name in imported(path):
            rest = name.partition(".")[2]
            public = not rest or rest in rocflash.__all__
            assert public or rest.partition(".")[0] in ("dropin", "self_test"), (
                f"{path.name}: {name}"
            )
            if rest.startswith("dropin."):
                assert rest.partition(".")[2] in dropin.__all__, f"{path.name}: {name}"


class Recorded(Exception):
    pass


def options_of(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: Any) -> Any:
    """The options that a call arrives with."""

    def caught(_q: Any, _k: Any, _v: Any, options: Any, *_: Any) -> Any:
        raise Recorded(Options(*options))

    monkeypatch.setattr(module, name, caught)
    with pytest.raises(Recorded) as found:
        call()
    return found.value.args[0]


def test_options_are_passed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options packed by position: each value identifies its option."""
    given = {name: f"the {name}" for name in NAMES}
    for name in ("window_left", "window_right", "backend"):
        given.pop(name)
    x = np.ones((1, 2, 2, 16), "float32")

    def attention() -> Any:
        return rocflash.attention(x, x, x, window=(3, 4), backend="naive", **given)

    found = options_of(monkeypatch, array_calls, "attention_of_arrays", attention)
    assert found._asdict() == {**given, "window_left": 3, "window_right": 4, "backend": 3}


def test_options_of_flash_attn_are_passed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(1, 2, 2, 16)
    names = [n for n in inspect.signature(dropin.attend).parameters if n in NAMES]
    given: dict[str, Any] = {name: n for n, name in enumerate(names, 10)}
    given["alibi_slopes"] = None

    def attend() -> Any:
        return dropin.attend(x, x, x, window_size=(3, 4), return_attn_probs=False, **given)

    found = options_of(monkeypatch, dropin, "attention_of_tensors", attend)
    arrived = {n: v for n, v in found._asdict().items() if n in given}
    assert arrived == given and len(given) == 18
    assert (found.window_left, found.window_right, found.mask) == (3, 4, None)


def test_options_of_caches_are_passed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **{
            n: f"the {n}"
            for n in ("cu_seqlens_q", "cache_leftpad", "cache_batch_idx", "page_table")
        },
        **{n: f"the {n}" for n in ("max_seqlen_q", "softmax_scale", "causal", "attention_chunk")},
        **{
            n: f"the {n}" for n in ("softcap", "alibi_slopes", "sinks", "num_splits", "num_threads")
        },
    }
    x = np.ones((1, 2, 2, 16), "float32")

    def decode() -> Any:
        return rocflash.decode(x, x, x, window=(3, 4), **given)

    found = options_of(monkeypatch, array_calls, "_Call", decode)
    given["leftpad_k"], given["block_table"] = given.pop("cache_leftpad"), given.pop("page_table")
    assert {n: v for n, v in found._asdict().items() if n in given} == given
    assert (found.window_left, found.window_right) == (3, 4)
