"""scripts/vocabulary.py on text that is written here, and its rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import vocabulary

RULES = """[*]
places => positions
[kernels/]
rings? => pipeline
allow tests/old.py: places
allow tests/gone.py: places
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files and the rules above."""
    for name, text in {
        "scripts/vocabulary.txt": RULES,
        "kernels/ring_buffer.hpp": "int k_ring;\n",
        "docs/page.md": "A ring.\nThree places.\n",
        "tests/old.py": "places = 1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    names = ["kernels/ring_buffer.hpp", "docs/page.md", "tests/old.py"]
    monkeypatch.setattr(vocabulary, "ROOT", tmp_path)
    monkeypatch.setattr(vocabulary, "RULES", tmp_path / "scripts/vocabulary.txt")
    monkeypatch.setattr(vocabulary, "tracked_files", lambda paths: paths or names)
    return tmp_path


def test_file_line_and_word_to_use_are_reported(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vocabulary.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "kernels/ring_buffer.hpp:name: 'ring': write pipeline",
        "kernels/ring_buffer.hpp:1: 'ring': write pipeline",
        "docs/page.md:2: 'places': write positions",
        "scripts/vocabulary.txt:6: no file needs this exception: delete it",
    ]


def test_a_clean_file_passes(tree: Path) -> None:
    assert vocabulary.main(["tests/old.py"]) == 0


@pytest.mark.parametrize(
    "phrase",
    (
        "whoever", "nobody", "the copy engine", "in turn", "turns_ready", "SeenTiles", "as ever",
        "a weight behind it", "so many", "plain attention", "on its way", "16 bytes a lane",
    ),
)  # fmt: skip
def test_the_old_dialect_is_denied(phrase: str) -> None:
    rules, allowed = vocabulary.read_rules(vocabulary.RULES)
    assert list(vocabulary.findings("kernels/x.hpp", phrase, rules, allowed, set()))
