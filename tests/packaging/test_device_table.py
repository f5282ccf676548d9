"""kernels/table/devices.inc: its Python reader, the copy that the package ships, and its
figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import archs
import device_table
import pytest


def test_the_packages_copy_is_the_table() -> None:
    assert device_table.COPY.read_text() == device_table.package_copy(), (
        "run packaging/device_table.py --write"
    )


def test_a_changed_copy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "devices.py"
    changed.write_text(device_table.package_copy().replace("MI300X", "MI300A"))
    monkeypatch.setattr(device_table, "ROOT", tmp_path)
    monkeypatch.setattr(device_table, "COPY", changed)
    monkeypatch.setattr(sys, "argv", ["device_table.py", "--check"])
    assert device_table.main() == 1
    changed.write_text(device_table.package_copy())
    assert device_table.main() == 0


def test_every_architecture_has_limits_and_a_card() -> None:
    with_limits = {member.arch for member in device_table.members()}
    with_card = set(device_table.devices())
    # sm_90a names a feature set of PTX; the device reports sm_90.
    assert with_limits - {"sm_90a"} == with_card - {"sm_90"}
    assert archs.kernel_targets() == [member.arch for member in device_table.members()]


@pytest.mark.parametrize(
    ("arch", "tflops"),
    [
        ("gfx906", 26.5),
        ("gfx908", 184.6),
        ("gfx90a", 181.0),
        ("gfx942", 1307.4),
        ("gfx950", 2516.6),
        ("gfx1030", 46.1),
        ("gfx1100", 122.9),
        ("gfx1201", 194.6),
        ("sm_80", 311.9),
        ("sm_90", 989.4),
        ("gfx1036", 0),
    ],
)
def test_peaks_are_the_data_sheets(arch: str, tflops: float) -> None:
    assert device_table.devices()[arch].peak_tflops == tflops


def test_json() -> None:
    printed = subprocess.run(
        [sys.executable, device_table.__file__], capture_output=True, text=True, check=True
    )
    table = json.loads(printed.stdout)
    card = next(device for device in table["devices"] if device["arch"] == "gfx942")
    assert (card["name"], card["cus"], card["mhz"], card["xcds"]) == ("MI300X", 304, 2100, 8)
    assert len(table["members"]) == len(archs.kernel_targets())


def test_a_table_without_lines_is_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "devices.inc"
    empty.write_text("// nothing\n")
    with pytest.raises(RuntimeError, match="has no line ROCFLASH_MEMBER"):
        device_table.members(empty)
