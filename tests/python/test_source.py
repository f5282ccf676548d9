"""Rules of the packages' source."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import rocflash
from rocflash._c.options import CacheCall

PACKAGES = Path(__file__).parents[2] / "python"
MOST_POSITIONAL = 10


def test_calls_name_their_arguments() -> None:
    """An argument too many in the middle of a long list goes unnoticed."""
    found, files = [], sorted(PACKAGES.rglob("*.py"))
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                given = sum(not isinstance(x, ast.Starred) for x in node.args)
                if given > MOST_POSITIONAL:
                    where = path.relative_to(PACKAGES)
                    found.append(f"{where}:{node.lineno}: {ast.unparse(node.func)} with {given}")
    assert not found
    assert len(files) > 80


def test_the_cache_call_is_described_once() -> None:
    """The public function spells out what CacheCall lists."""
    parameters = list(inspect.signature(rocflash.decode).parameters.values())
    assert [x.name for x in parameters[:3]] == ["q", "k_cache", "v_cache"]
    assert {x.name: x.default for x in parameters[3:]} == CacheCall._field_defaults
