"""scripts/compare_kernels.py on small code objects and PTX modules that are written here."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import compare_kernels
import pytest

SCRIPT = Path(compare_kernels.__file__)
NOP, END = 0xBF800000, 0xBF810000


def pack(value: Any) -> bytes:
    """MessagePack of strings, numbers, booleans, lists and dictionaries."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes([value]) if value < 0x80 else struct.pack(">BI", 0xCE, value)
    if isinstance(value, str):
        return struct.pack(">BB", 0xD9, len(value)) + value.encode()
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(pack(item) for item in value)
    return bytes([0x80 | len(value)]) + b"".join(pack(k) + pack(v) for k, v in value.items())


def code_object(
    kernels: dict[str, list[int]], constants: bytes = b"", flags: int = 0x4C, **metadata: int
) -> bytes:
    """An ELF file with one function, one descriptor and one metadata entry per kernel."""
    names = ["", ".note", ".dynsym", ".dynstr", ".rodata", ".text", ".shstrtab"]
    strings, symbols, text, rodata = b"\0", bytes(24), b"", b""
    # Longer names move what comes after them, as in real files.
    rodata_at = 0x1000 + sum(16 * len(name) for name in kernels)
    text_at = rodata_at + 0x1000
    entries = []
    for name, code in kernels.items():
        words = struct.pack(f"<{len(code)}I", *code)
        descriptor = struct.pack("<IIIIQ", 512, 0, 64, 0, text_at + len(text) - rodata_at) + bytes(
            40
        )
        for symbol, kind, address, size in (
            (name, 2, text_at + len(text), len(words)),
            (f"{name}.kd", 1, rodata_at + len(rodata), 64),
        ):
            symbols += struct.pack("<IBBHQQ", len(strings), 16 | kind, 0, 1, address, size)
            strings += symbol.encode() + b"\0"
        text += words + struct.pack("<I", NOP) * (-len(code) % 16)
        rodata += descriptor
        entries.append({".name": name, ".symbol": f"{name}.kd", ".vgpr_count": 168, **metadata})
    message = pack({"amdhsa.kernels": entries, "amdhsa.version": [1, 2]})
    note = (
        struct.pack("<III", 7, len(message), 32)
        + b"AMDGPU\0\0"
        + message
        + bytes(-len(message) % 4)
    )
    headings = b"\0".join(name.encode() for name in names) + b"\0"
    contents = [b"", note, symbols, strings, rodata + constants, text, headings]
    addresses = [0, 0, 0, 0, rodata_at, text_at, 0]
    body, rows = b"", b""
    for name, content, address in zip(names, contents, addresses):
        loaded = 2 if name in (".note", ".dynsym", ".dynstr", ".rodata", ".text") else 0
        at = headings.index(name.encode() + b"\0")
        rows += struct.pack(
            "<IIQQQQIIQQ", at, 1, loaded, address, 64 + len(body), len(content), 0, 0, 0, 0
        )
        body += content
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    fields = (3, 224, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(names), len(names) - 1)
    return identity + struct.pack("<HHIQQQIHHHHHH", *fields) + body + rows


PTX = """.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];
.weak .shared .align 4 .b8 _ZZfirstE4sums[32];
.weak .shared .align 4 .b8 _ZZfirstE4rows[32];
.global .align 8 .b8 switch_$_table_$_first7[4] = {4, 0, 2, 1};
.func  (.param .b32 func_retval0) _Zhelper(
\t.param .b32 _Zhelper_param_0
)
{
\tst.param.b32 \t[func_retval0], %r1;
\tret;
}
.visible .entry first(
\t.param .u64 first_param_0
)
.maxntid 384, 1, 1
{
\tld.param.b64 \t%rd1, [first_param_0];
\tmov.b64 \t%rd2, _ZZfirstE4sums;
\tmov.b64 \t%rd3, _ZZfirstE4rows;
\tmov.b64 \t%rd4, switch_$_table_$_first7;
\t{ .reg .pred p; }
$L__BB0_1:
\tcall.uni (retval0), _Zhelper, (param0);
\tret;
}
.visible .entry second(
)
{
\tret;
}
"""
CODE = {"forward_f16": [1, 2, 3, END], "forward_bf16": [1, 2, 4, END], "combine": [7, END]}


def write(directory: Path, co: bytes | None = None, ptx: str | None = PTX) -> Path:
    kernels = directory / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "gfx942.co").write_bytes(co if co is not None else code_object(CODE))
    if ptx is not None:
        (kernels / "sm_90a.ptx").write_text(ptx)
    return directory


def compare(tmp_path: Path, **changed: Any) -> list[str]:
    """What differs between the unchanged build and a changed one, as "kernel: what"."""
    old, new = write(tmp_path / "old"), write(tmp_path / "new", **changed)
    result = compare_kernels.compare_builds(old, new, {})
    assert result["identical"] == (not result["differences"])
    return [f"{row['kernel']}: {row['what']}" for row in result["differences"]]


def test_a_build_equals_itself(tmp_path: Path) -> None:
    assert compare(tmp_path) == []


def test_renamed_kernels_are_paired_by_content(tmp_path: Path) -> None:
    code = {f"a_much_longer_name_of_{name}": words for name, words in CODE.items()}
    old, new = write(tmp_path / "old"), write(tmp_path / "new", co=code_object(code))
    result = compare_kernels.compare_builds(old, new, {})
    assert result["identical"], result["differences"]
    assert result["modules"]["gfx942.co"] == {
        "kernels": 3,
        "renamed": {name: f"a_much_longer_name_of_{name}" for name in CODE},
    }


def test_the_order_of_kernels_is_ignored(tmp_path: Path) -> None:
    assert compare(tmp_path, co=code_object(dict(reversed(CODE.items())))) == []


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            {"forward_f16": [1, 9, 3, END]},
            "forward_f16: machine code: 1 of 16 bytes, the first at 0x4",
        ),
        ({"combine": [7, 7, END]}, "combine: machine code: 8 bytes, now 12"),
        # Swapped names call other code: only a map makes that a change of names.
        (
            {"forward_f16": [1, 2, 4, END], "forward_bf16": [1, 2, 3, END]},
            "forward_f16: machine code: 1 of 16 bytes, the first at 0x8",
        ),
    ],
)
def test_changed_code_is_found(
    tmp_path: Path, changed: dict[str, list[int]], difference: str
) -> None:
    assert difference in compare(tmp_path, co=code_object({**CODE, **changed}))


def test_code_without_a_symbol_is_found(tmp_path: Path) -> None:
    """A local function follows its kernel; its symbol is stripped."""
    text = code_object(CODE)
    padding = struct.pack("<4I", 1, 2, 3, END) + struct.pack("<I", NOP)
    assert text.count(padding) == 1
    local = text.replace(padding, padding[:-4] + struct.pack("<I", END))
    assert compare(tmp_path, co=local) == [
        "forward_f16: local functions: 0 before and 1 now, not the same"
    ]


def test_changed_descriptor_is_found(tmp_path: Path) -> None:
    text = code_object(CODE)
    descriptor = struct.pack("<IIII", 512, 0, 64, 0)
    at = text.index(descriptor)
    changed = text[:at] + struct.pack("<IIII", 1024, 0, 64, 0) + text[at + 16 :]
    found = compare(tmp_path, co=changed)
    assert found == ["forward_f16: kernel descriptor: 1 of 64 bytes, the first at 0x1"]


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        ({"vgpr_count": 3}, "combine: metadata: vgpr_count None, now 3"),
        ({".vgpr_count": 256}, "combine: metadata: .vgpr_count 168, now 256"),
        ({"constants": b"\1\2\3\4"}, ": constant data: 0 bytes, now 4"),
        ({"flags": 0x4D}, ": ELF flags: 76, now 77"),
    ],
)
def test_changed_data_is_found(tmp_path: Path, arguments: dict[str, Any], difference: str) -> None:
    assert difference in compare(tmp_path, co=code_object(CODE, **arguments))


def test_ptx_names_are_ignored(tmp_path: Path) -> None:
    renamed = (
        PTX.replace("first", "forward_warp_specialized")
        .replace("_Zhelper", "_Zother")
        .replace("E4sums", "E7row_sum")
        .replace("second", "combine // a comment")
        .replace("combine // a comment(", "combine(")
    )
    assert "switch_$_table_$_forward_warp_specialized7" in renamed
    assert compare(tmp_path, ptx=renamed) == []


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("%rd2, _ZZ", "%rd9, _ZZ", "first: PTX: line 7: "),
        ("$L__BB0_1", "$L__BB0_2", "first: PTX: line 11: "),
        (".maxntid 384", ".maxntid 256", "first: PTX: line 4: "),
        ("\tret;\n}\n.visible .entry second", "}\n.visible .entry second", "first: PTX: line 13: "),
        # Both uses name the same array: not a change of names.
        ("%rd3, _ZZfirstE4rows", "%rd3, _ZZfirstE4sums", "first: PTX: line 8: "),
        ("= {4, 0, 2, 1}", "= {4, 0, 2, 2}", ": definitions outside kernels: "),
        ("[func_retval0], %r1", "[func_retval0], %r2", ": definitions outside kernels: "),
        (".version 8.0", ".version 8.1", ": PTX header: "),
    ],
)
def test_changed_ptx_is_found(tmp_path: Path, before: str, after: str, difference: str) -> None:
    assert before in PTX
    found = compare(tmp_path, ptx=PTX.replace(before, after))
    assert any(row.startswith(difference) for row in found), found


def test_missing_kernels_and_modules_are_found(tmp_path: Path) -> None:
    code = {"combine": CODE["combine"], "added": [11, END], "forward_f16": CODE["forward_f16"]}
    found = compare(tmp_path, co=code_object(code), ptx=None)
    assert found == [
        "forward_bf16: only in the old build",
        "added: only in the new build",
        ": only in the old build",
    ]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, check=False
    )


def test_command(tmp_path: Path) -> None:
    old = write(tmp_path / "old")
    swapped = {"forward_f16": [1, 2, 4, END], "forward_bf16": [1, 2, 3, END], "combine": [7, END]}
    new = write(tmp_path / "new", co=code_object(swapped))
    without_map = run(old, new)
    assert without_map.returncode == 1, without_map
    assert "gfx942.co forward_f16: machine code: 1 of 16 bytes" in without_map.stdout
    assert "2 modules, 5 kernels, 0 renamed: 2 differences" in without_map.stdout
    names = tmp_path / "map"
    names.write_text("forward_f16 forward_bf16  # swapped\n\nforward_bf16 forward_f16\n")
    with_map = run(old, new, "--map", names, "--json")
    assert with_map.returncode == 0, with_map
    result = json.loads(with_map.stdout)
    assert result["identical"] is True
    assert result["modules"]["gfx942.co"]["renamed"] == {
        "forward_f16": "forward_bf16",
        "forward_bf16": "forward_f16",
    }
    assert "OLD_BUILD" in run("--help").stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("forward_f16", 'not a line "old new": forward_f16'),
        ("a b\nc b", "a name for the second time: c b"),
        ("nothing forward", "the map renames nothing; the old build has no such kernel"),
    ],
)
def test_wrong_maps(tmp_path: Path, line: str, message: str) -> None:
    build, names = write(tmp_path / "build"), tmp_path / "map"
    names.write_text(line)
    wrong = run(build, build, "--map", names)
    assert wrong.returncode == 2
    assert message in wrong.stderr


def test_wrong_directories(tmp_path: Path) -> None:
    build = write(tmp_path / "build")
    (tmp_path / "empty" / "kernels").mkdir(parents=True)
    empty = run(build, tmp_path / "empty")
    assert empty.returncode == 2
    assert "no *.co and no *.ptx files" in empty.stderr
    broken = run(build, write(tmp_path / "broken", co=b"text"))
    assert broken.returncode == 2
    assert "not a 64-bit little-endian ELF file" in broken.stderr
