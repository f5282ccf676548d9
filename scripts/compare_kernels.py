#!/usr/bin/env python3
"""Compares the GPU kernels of two builds and ignores their names.

    scripts/compare_kernels.py OLD_BUILD NEW_BUILD
    scripts/compare_kernels.py OLD_BUILD NEW_BUILD --map renamed.txt --json

A change of names must not change machine code. For every AMD code object, <build>/kernels/*.co,
the script compares each kernel's code, kernel descriptor and metadata, and all other loaded data.
For every PTX module, <build>/kernels/*.ptx, it compares each kernel's text and all definitions
outside kernels. Register numbers, label numbers and instruction order must be equal.

Ignored: the names of kernels, helper functions and variables; the addresses that follow from the
lengths of those names; the order of kernels in a module.

Kernels are paired by the map, then by name, then by identical content in module order. The map has
one "old new" pair per line; "#" starts a comment. Exit status: 0 identical, 1 different, 2 usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NamedTuple

# Sections of a code object that hold names, or addresses that depend on the lengths of names.
LINKAGE = {".note", ".dynsym", ".gnu.hash", ".hash", ".dynstr", ".dynamic", ".relro_padding"}
NOT_IN_FILE = 8  # SHT_NOBITS
LOADED = 2  # SHF_ALLOC
FUNCTION, OBJECT = 2, 1  # STT_FUNC, STT_OBJECT
AMDGPU_METADATA = 32  # NT_AMDGPU_METADATA
# The linker's padding between functions: zero, s_nop, s_code_end.
PADDING = {0x00000000, 0xBF800000, 0xBF9F0000}
# kernel_code_entry_byte_offset: the distance from the descriptor to the code, set by the linker.
DESCRIPTOR_ENTRY = slice(16, 24)


class BadInput(Exception):
    """The arguments or the files cannot be compared."""


@dataclass
class Kernel:
    """One kernel without its name: parts that must be equal, by what they are."""

    name: str
    parts: dict[str, Any]

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self.parts.items())).encode()).hexdigest()


@dataclass
class Module:
    """A code object or a PTX module: its kernels in order, and what they share."""

    kernels: dict[str, Kernel]
    shared: dict[str, Any]


class Section(NamedTuple):
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int


def read_string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def unpack_message(data: bytes, at: int = 0) -> tuple[Any, int]:
    """MessagePack, as far as AMDGPU metadata uses it: the value and where it ends."""
    tag = data[at]
    at += 1

    def number(code: str) -> int:
        return int(struct.unpack_from(f">{code}", data, at)[0])

    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 256, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    integers = {
        0xCC: "B",
        0xCD: "H",
        0xCE: "I",
        0xCF: "Q",
        0xD0: "b",
        0xD1: "h",
        0xD2: "i",
        0xD3: "q",
    }
    if tag in integers:
        return number(integers[tag]), at + struct.calcsize(integers[tag])
    lengths = {0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}
    if tag in lengths:
        length = number(lengths[tag])
        at += struct.calcsize(lengths[tag])
    elif tag < 0xC0:
        length = tag & (0x1F if tag >= 0xA0 else 0x0F)
    else:
        raise BadInput(f"AMDGPU metadata has the MessagePack tag {tag:#x}")
    if 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA, 0xDB):
        return data[at : at + length].decode(), at + length
    if 0x90 <= tag < 0xA0 or tag in (0xDC, 0xDD):
        items = []
        for _ in range(length):
            item, at = unpack_message(data, at)
            items.append(item)
        return items, at
    pairs = {}
    for _ in range(length):
        key, at = unpack_message(data, at)
        pairs[key], at = unpack_message(data, at)
    return pairs, at


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Metadata as path and leaf value, without names of kernels, arguments and types."""
    if isinstance(value, dict):
        items = [(f"{path}{key}", item) for key, item in value.items()]
        items = [
            (key, item) for key, item in items if not re.search(r"\.(name|symbol|type_name)$", key)
        ]
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {path: value}
    return {key: leaf for name, item in items for key, leaf in flatten(item, name).items()}


class CodeObject:
    """Reads one AMD code object: a 64-bit little-endian ELF file."""

    def __init__(self, path: Path):
        self.path, self.data = path, path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise BadInput(f"{path}: not a 64-bit little-endian ELF file")
        self.flags = struct.unpack_from("<I", self.data, 48)[0]
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        size, count, names_at = struct.unpack_from("<HHH", self.data, 58)
        rows = [struct.unpack_from("<IIQQQQ", self.data, offset + size * i) for i in range(count)]
        names = self.data[rows[names_at][4] :]
        self.sections = {
            read_string(names, row[0]): Section(read_string(names, row[0]), *row[1:])
            for row in rows
        }

    def content(self, name: str) -> bytes:
        section = self.sections.get(name)
        if section is None:
            raise BadInput(f"{self.path}: no section {name}")
        if section.type == NOT_IN_FILE:
            return b""
        return self.data[section.offset : section.offset + section.size]

    def symbols(self, kind: int) -> list[tuple[str, int, int]]:
        """Name, address and size of the dynamic symbols of one kind, by address."""
        table, strings = self.content(".dynsym"), self.content(".dynstr")
        found = []
        for at in range(0, len(table), 24):
            name, info, _, _, address, size = struct.unpack_from("<IBBHQQ", table, at)
            if info & 15 == kind:
                found.append((read_string(strings, name), address, size))
        return sorted(found, key=lambda symbol: symbol[1])

    def metadata(self) -> dict[str, dict[str, Any]]:
        """The metadata of each kernel, flat, and that of the whole module as the empty name."""
        notes, at = self.content(".note"), 0
        while at < len(notes):
            name_size, size, kind = struct.unpack_from("<III", notes, at)
            at += 12 + (name_size + 3) // 4 * 4
            if kind == AMDGPU_METADATA:
                whole, _ = unpack_message(notes[at : at + size])
                each = {kernel[".name"]: flatten(kernel) for kernel in whole.pop("amdhsa.kernels")}
                return {"": flatten(whole), **each}
            at += (size + 3) // 4 * 4
        raise BadInput(f"{self.path}: no AMDGPU metadata")


def read_code_object(path: Path) -> Module:
    code = CodeObject(path)
    text, rodata = code.sections[".text"], code.sections[".rodata"]
    text_bytes, constants = code.content(".text"), bytearray(code.content(".rodata"))
    metadata = code.metadata()
    descriptors = {}
    for name, address, size in code.symbols(OBJECT):
        if name.endswith(".kd"):
            begin = address - rodata.address
            descriptor = bytearray(constants[begin : begin + size])
            descriptor[DESCRIPTOR_ENTRY] = bytes(8)
            descriptors[name[: -len(".kd")]] = bytes(descriptor)
            constants[begin : begin + size] = bytes(size)
    kernels, functions = {}, code.symbols(FUNCTION)
    ends = [address for _, address, _ in functions[1:]] + [text.address + text.size]
    for (name, address, size), next_address in zip(functions, ends):
        begin, end = address - text.address, next_address - text.address
        # Local functions have no symbol; without padding, they belong to the kernel before them.
        words = [word for (word,) in struct.iter_unpack("<I", text_bytes[begin + size : end])]
        kernels[name] = Kernel(
            name,
            {
                "machine code": text_bytes[begin : begin + size],
                "local functions": [word for word in words if word not in PADDING],
                "kernel descriptor": descriptors.pop(name, b""),
                "metadata": metadata.pop(name, {}),
            },
        )
    other = {
        section.name: (section.size, code.content(section.name))
        for section in code.sections.values()
        if section.flags & LOADED and section.name not in LINKAGE | {".text", ".rodata"}
    }
    shared = {
        "ELF flags": code.flags,
        "module metadata": metadata.pop(""),
        "constant data": bytes(constants).strip(b"\0"),
        "loaded sections": other,
        "kernel descriptors without code": sorted(descriptors),
        "metadata without code": sorted(metadata),
    }
    return Module(kernels, shared)


# Definitions start a line: ".visible .entry name(", ".func (.param ...) name(", ".global ...
# name[4]".
PTX_FUNCTION = re.compile(
    r"^(?:\.(?:visible|weak|extern) )*\.(entry|func)(?: +\([^)]*\))? +([\w$]+)", re.MULTILINE
)
PTX_VARIABLE = re.compile(
    r"^(?:\.(?:visible|weak|extern) "
    r")*\.(?:global|const|shared)\b[^={;]*?([\w$]+)(?:\[[\d\]\[]*\])?(?: =|;)"
)
PTX_NAME = re.compile(r"[A-Za-z_$][\w$]*")


@dataclass
class PtxModule:
    """PTX split into definitions; names are replaced by digests of what they define."""

    header: str
    definitions: dict[str, str]
    entries: list[str]
    digests: dict[str, str] = field(default_factory=dict)

    def without_names(self, name: str) -> str:
        """A definition's text with its own name and all other defined names replaced."""
        numbers: dict[str, int] = {}

        def replace(match: re.Match[str]) -> str:
            found = match.group()
            if found == name or re.fullmatch(re.escape(name) + r"_param_\d+|func_retval\d+", found):
                return found.replace(name, "SELF", 1)
            if found not in self.definitions:
                return found
            # Variables with equal definitions stay apart: each has the number of its first use.
            number = numbers.setdefault(found, len(numbers))
            return f"<{number} {self.digest(found)}>"

        return PTX_NAME.sub(replace, self.definitions[name])

    def digest(self, name: str) -> str:
        if name not in self.digests:
            self.digests[name] = "recursive"
            self.digests[name] = hashlib.sha256(self.without_names(name).encode()).hexdigest()[:16]
        return self.digests[name]


def split_ptx(path: Path) -> PtxModule:
    text = re.sub(r"[ \t]*//.*$", "", path.read_text(), flags=re.MULTILINE)
    header, definitions, entries, at = [], {}, [], 0
    while at < len(text):
        line_end = text.find("\n", at) + 1 or len(text)
        function, end = PTX_FUNCTION.match(text, at), line_end
        if function:
            # A declaration ends with ";" before any body; a body ends with "}" at a line's start.
            body, declared = (text.find(mark, at) for mark in ("\n{", ";"))
            is_definition = 0 <= body < declared
            end = text.find("\n}", body) + 2 if is_definition else declared + 1
            if end in (0, 1):
                raise BadInput(f"{path}: {function.group(2)} has no end")
            name = function.group(2)
            if function.group(1) == "entry":
                entries.append(name)
        else:
            variable = PTX_VARIABLE.match(text[at:line_end])
            if not variable:
                header.append(text[at:line_end].strip())
                at = line_end
                continue
            name, end = variable.group(1), text.index(";", at) + 1
        # A declaration before the definition counts with it.
        definitions[name] = definitions.get(name, "") + text[at:end]
        at = end
    if not any(line.startswith(".version") for line in header):
        raise BadInput(f"{path}: no PTX, as it has no .version")
    return PtxModule("\n".join(line for line in header if line), definitions, entries)


def read_ptx(path: Path) -> Module:
    module = split_ptx(path)
    kernels = {
        name: Kernel(name, {"PTX": module.without_names(name).splitlines()})
        for name in module.entries
    }
    others = [name for name in module.definitions if name not in kernels]
    shared = {
        "PTX header": module.header,
        "definitions outside kernels": Counter(module.digest(name) for name in others),
    }
    return Module(kernels, shared)


READERS: dict[str, Callable[[Path], Module]] = {".co": read_code_object, ".ptx": read_ptx}


def read_build(build: Path) -> dict[str, Path]:
    directory = build / "kernels"
    found = {path.name: path for path in sorted(directory.glob("*")) if path.suffix in READERS}
    if not found:
        raise BadInput(f"{directory}: no *.co and no *.ptx files")
    return found


def read_map(path: Path | None) -> dict[str, str]:
    renamed: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines() if path else [], 1):
        words = line.partition("#")[0].split()
        if words and len(words) != 2:
            raise BadInput(f'{path}:{number}: not a line "old new": {line}')
        if words and (words[0] in renamed or words[1] in renamed.values()):
            raise BadInput(f"{path}:{number}: a name for the second time: {line}")
        if words:
            renamed[words[0]] = words[1]
    return renamed


def pair_kernels(old: Module, new: Module, renamed: dict[str, str]) -> dict[str, str]:
    """Old and new names of the same kernel; names without a partner are left out."""
    pairs = {name: renamed[name] for name in old.kernels if renamed.get(name) in new.kernels}
    taken = set(pairs.values())
    for name in old.kernels:
        if name not in renamed and name in new.kernels and name not in taken:
            pairs[name] = name
            taken.add(name)
    by_content: dict[str, list[str]] = {}
    for name, kernel in new.kernels.items():
        if name not in taken:
            by_content.setdefault(kernel.digest(), []).append(name)
    for name, kernel in old.kernels.items():
        alike = by_content.get(kernel.digest())
        if name not in pairs and name not in renamed and alike:
            pairs[name] = alike.pop(0)
    return pairs


def describe(part: str, old: Any, new: Any) -> str:
    """Where two versions of a part differ."""
    if isinstance(old, bytes):
        if len(old) != len(new):
            return f"{part}: {len(old)} bytes, now {len(new)}"
        at = [index for index in range(len(old)) if old[index] != new[index]]
        return f"{part}: {len(at)} of {len(old)} bytes, the first at {at[0]:#x}"
    if isinstance(old, dict) and not isinstance(old, Counter):
        keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        if part == "loaded sections":
            return f"{part}: {', '.join(keys)}"
        return f"{part}: " + ", ".join(f"{key} {old.get(key)}, now {new.get(key)}" for key in keys)
    if isinstance(old, list) and part == "PTX":
        for number, (before, after) in enumerate(zip(old, new), 1):
            if before != after:
                return f"{part}: line {number}: {before.strip()} | now: {after.strip()}"
        return f"{part}: {len(old)} lines, now {len(new)}"
    if isinstance(old, (Counter, list)):
        return f"{part}: {len(old)} before and {len(new)} now, not the same"
    return f"{part}: {old!r}, now {new!r}"


def compare_modules(
    old: Module, new: Module, renamed: dict[str, str]
) -> tuple[dict[str, str], list[Any]]:
    """The kernels that changed their name, and (kernel, difference) for everything that differs."""
    pairs = pair_kernels(old, new, renamed)
    partners = set(pairs.values())
    differences = [
        ("", describe(part, old.shared[part], new.shared[part]))
        for part in old.shared
        if old.shared[part] != new.shared[part]
    ]
    for name in old.kernels:
        if name not in pairs:
            differences.append((name, "only in the old build"))
            continue
        before, after = old.kernels[name].parts, new.kernels[pairs[name]].parts
        differences += [
            (name, describe(part, before[part], after[part]))
            for part in before
            if before[part] != after[part]
        ]
    differences += [(name, "only in the new build") for name in new.kernels if name not in partners]
    return {before: after for before, after in pairs.items() if before != after}, differences


def compare_builds(old_build: Path, new_build: Path, renamed: dict[str, str]) -> dict[str, Any]:
    old_files, new_files = read_build(old_build), read_build(new_build)
    modules, differences, names = {}, [], set()
    for file in sorted({*old_files, *new_files}):
        if file not in old_files or file not in new_files:
            where = "old" if file in old_files else "new"
            differences.append({"module": file, "kernel": "", "what": f"only in the {where} build"})
            continue
        read = READERS[Path(file).suffix]
        old = read(old_files[file])
        # Equal files are equal modules: reading PTX takes seconds.
        same = old_files[file].read_bytes() == new_files[file].read_bytes()
        new = old if same else read(new_files[file])
        names |= set(old.kernels)
        changed, found = compare_modules(old, new, renamed)
        modules[file] = {"kernels": len(old.kernels), "renamed": changed}
        differences += [{"module": file, "kernel": name, "what": what} for name, what in found]
    unknown = sorted(set(renamed) - names)
    if unknown and modules:
        raise BadInput(f"the map renames {', '.join(unknown)}; the old build has no such kernel")
    return {"identical": not differences, "modules": modules, "differences": differences}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "old", type=Path, metavar="OLD_BUILD", help="build directory before the change"
    )
    parser.add_argument(
        "new", type=Path, metavar="NEW_BUILD", help="build directory after the change"
    )
    parser.add_argument(
        "--map", type=Path, metavar="FILE", help='renamed kernels, one "old new" per line'
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    try:
        result = compare_builds(arguments.old, arguments.new, read_map(arguments.map))
    except (BadInput, OSError) as error:
        print(f"compare_kernels.py: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for row in result["differences"]:
            print(f"{row['module']}{' ' * bool(row['kernel'])}{row['kernel']}: {row['what']}")
        modules = result["modules"].values()
        kernels = sum(module["kernels"] for module in modules)
        renamed = sum(len(module["renamed"]) for module in modules)
        verdict = (
            "identical" if result["identical"] else f"{len(result['differences'])} differences"
        )
        print(f"{len(modules)} modules, {kernels} kernels, {renamed} renamed: {verdict}")
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
