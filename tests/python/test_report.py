"""The page of `python -m rocflash.report`: valid HTML, with failures and missing parts reported."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rocflash.report import __main__ as program
from rocflash.report import page, svg
from rocflash.report.progress import Progress

VOID = {"meta"}


class Reader(HTMLParser):
    """Counts elements, and requires every one to be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.recorded: dict[str, int] = {}
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.recorded[tag] = self.recorded.get(tag, 0) + 1
        assert not [v for k, v in attributes if k in ("src", "href")], (
            "the page would need another file"
        )
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.recorded[tag] = self.recorded.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("report") / "page.html"
    words = [
        "--device",
        "cpu",
        "--lengths",
        "64",
        "256",
        "--every",
        "60",
        "--seconds",
        "0.01",
        "--output",
        str(file),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rocflash.report", *words],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0 and "page.html" in done.stdout, done.stdout + done.stderr
    text = file.read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return text, json.loads(found.group(1).replace("<\\/", "</"))


def test_page(written: tuple[str, dict[str, Any]]) -> None:
    text, data = written
    reader = read(text)
    assert (
        reader.recorded["svg"] == 5
        and reader.recorded["polyline"] == 12
        and reader.recorded["table"] == 6
    )
    shown = " ".join(reader.text)
    for words in (
        "Devices",
        "cases held",
        "predicted, not measured",
        "MI300X (gfx942), d 128",
        "rocflash.report --device cpu",
    ):
        assert words in shown, words
    assert not re.search(r"""(src|href|url|@import)\s*[=(]?\s*["']?https?://""", text), (
        "it loads nothing from elsewhere"
    )
    assert data["verify"]["failed"] == 0 and data["verify"]["cases"] > 2
    for rows in data["speed"].values():
        assert [row["length"] for row in rows] == [64, 256]
        assert all(x > 0 for row in rows for x in row["seconds"].values())
    # All scores of 4 heads in f32, and their softmax: only naive attention has memory for them.
    used = data["speed"]["forward"][1]["bytes"]
    scores = 4 * 256 * 256 * 4
    assert used["standard"] > 1.5 * scores and used["rocflash"] < scores


def test_page_shows_failures_and_missing_parts(written: tuple[str, dict[str, Any]]) -> None:
    data = copy.deepcopy(written[1])
    data["speed"]["forward"][1]["seconds"]["standard"] = None
    data["speed"]["forward"][1]["bytes"]["standard"] = None
    result = data["verify"]["results"][0]
    result["good"], result["name"] = False, "<b>/f32/1x1"
    result["tensors"] = {"out": {"ratio": 1.5}}
    shown = " ".join(read(page.build(data)).text)
    assert "no memory" in shown and "OFF" in shown and "1.50" in shown and "<b>" in shown
    data["verify"] = {"missing": "the command rocflash is not installed"}
    assert "Not verified: the command" in " ".join(read(page.build(data)).text)


def test_a_missing_verify_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "rocflash"
    script.write_text("#!/bin/sh\necho no such device >&2\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setattr(program, "_command", lambda: str(script))
    assert program.verified("cpu", 1) == {"missing": "no such device"}
    monkeypatch.setattr(program, "_command", lambda: None)
    assert "not installed" in program.verified("cpu", 1)["missing"]


def test_texts_and_ticks() -> None:
    assert [page.seconds_text(x) for x in (1.5, 0.00123, 1e-6, 5e-9)] == [
        "1.5 s",
        "1.23 ms",
        "1 µs",
        "5 ns",
    ]
    assert [page.bytes_text(x) for x in (10, 2048, 3 << 20, 1 << 30)] == [
        "10 B",
        "2 KiB",
        "3 MiB",
        "1 GiB",
    ]
    assert page.growth([128, 256, 512], [1.0, 2.0, 8.0]) == pytest.approx(2)
    assert page.growth([128, 256], [1.0, None]) is None
    assert svg._ticks(1, 100, 10) == [1, 2, 5, 10, 20, 50, 100]
    assert svg._ticks(3000, 2**20 + 1, 2) == [2**12, 2**14, 2**16, 2**18, 2**20]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_terminals_in_logs_and_quiet() -> None:
    def shown(to: io.StringIO, quiet: bool = False) -> str:
        bar = Progress(2, quiet, to)
        bar.step("one")
        bar.step("two")
        bar.close()
        return to.getvalue()

    drawn = shown(Terminal())
    assert "[          " in drawn and "[##########          ]  50% two" in drawn
    assert drawn.endswith("\r\033[K") and "\n" not in drawn
    assert shown(io.StringIO()) == "[0 s] one\n"  # the next line after ten seconds
    assert shown(Terminal(), quiet=True) == shown(io.StringIO(), quiet=True) == ""
