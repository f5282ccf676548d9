"""The bindings of the GPU drivers agree: the library's table has the functions that others call."""

from __future__ import annotations

import re

from conftest import ROOT

# Functions of the Rust crate alone, which has streams and buffers of its own.
RUST_ONLY = {
    "hipInit",
    "hipDeviceGetName",
    "hipMemcpyHtoDAsync",
    "hipMemcpyDtoHAsync",
    "hipMemcpyDtoDAsync",
    "hipMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
}


def table(need: str = "required|optional") -> set[str]:
    text = (ROOT / "src/gpu/driver/symbols.inc").read_text()
    found = re.findall(rf"^ROCFLASH_\w+\((?:{need}), +\w+, +(\w+),", text, re.MULTILINE)
    assert found and len(found) == len(set(found))
    return set(found)


def test_rust_calls_functions_of_the_table() -> None:
    text = (ROOT / "rust/rocflash/src/gpu/driver.rs").read_text()
    used = set(re.findall(r'c"((?:hip|cu)[A-Z]\w*)"', text))
    assert len(used) > 20
    assert used - table() == RUST_ONLY


def test_the_simulator_exports_the_hip_functions() -> None:
    exported = set()
    for path in (ROOT / "sim/hip").glob("*.cpp"):
        exported |= set(
            re.findall(r"^ROCFLASH_HIP_API [\w ]+?\*?\s?(hip\w+)\(", path.read_text(), re.MULTILINE)
        )
    missing = {name for name in table("required") if name.startswith("hip")} - exported
    assert not missing, missing
