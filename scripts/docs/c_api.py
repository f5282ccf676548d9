"""Writes the reference of the C API as Markdown, from the Doxygen comments of rocflash.h.

The header uses few of Doxygen's commands: @file, @brief, @param, @return, @name and groups. Every
other command, and every public declaration without a comment, is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

COMMANDS = {"file", "brief", "param", "return", "name", "{", "}"}


class HeaderError(Exception):
    """The header has something that this reader does not know."""


@dataclass
class Comment:
    brief: str = ""
    text: str = ""
    params: list[tuple[str, str]] = field(default_factory=list)
    returns: str = ""
    group: str = ""
    opens: bool = False
    closes: bool = False


@dataclass
class Declaration:
    kind: str  # enum, struct, handle, function, macro or group
    name: str
    code: str
    comment: Comment
    members: list[tuple[str, str, str]] = field(default_factory=list)  # code, text, group


def read_comment(raw: str) -> Comment:
    lines = [re.sub(r"^\s*\*? ?", "", line).rstrip() for line in raw.strip().splitlines()]
    found = Comment()
    current = "text"
    for line in lines:
        command = re.match(r"\s*@(\w+|[{}])\s*(.*)", line)
        if command is None:
            text = line.strip()
            if current == "param":
                name, old = found.params[-1]
                found.params[-1] = (name, f"{old} {text}".strip())
            elif current == "return":
                found.returns = f"{found.returns} {text}".strip()
            elif current == "brief" and text:
                found.brief = f"{found.brief} {text}"
            else:
                current = "text"
                found.text += line + "\n"
            continue
        name, rest = command.groups()
        if name not in COMMANDS:
            raise HeaderError(f"@{name} is not one of {', '.join(sorted(COMMANDS))}")
        current = name
        if name == "brief":
            found.brief = rest
        elif name == "param":
            parameter, _, text = rest.partition(" ")
            found.params.append((parameter, text))
        elif name == "return":
            found.returns = rest
        elif name == "name":
            found.group, current = rest, "text"
        elif name == "{":
            found.opens = True
        elif name == "}":
            found.closes = True
    found.text = found.text.strip("\n")
    return found


def read_members(body: str, pattern: str) -> list[tuple[str, str, str]]:
    """(code, comment, group) of each field or value."""
    members, group, pending = [], "", ""
    for comment, code in re.findall(r"/\*\*(.*?)\*/|([^\s/][^;,/]*[;,]?)", body, re.DOTALL):
        if comment:
            read = read_comment(comment)
            if read.group:
                group = read.group
            elif read.closes:
                group = ""
            elif not read.opens:
                pending = " ".join(f"{read.brief} {read.text}".split())
        elif code.strip():
            text = code.strip().rstrip(";,").strip()
            if not re.match(pattern, text):
                raise HeaderError(f"not a member: {text}")
            members.append((text, pending, group))
            pending = ""
    return members


def read_header(path: Path) -> tuple[Comment, list[Declaration]]:
    """The file's comment, and its declarations in their order."""
    text = path.read_text()
    parts = re.split(r"/\*\*(.*?)\*/", text, flags=re.DOTALL)
    # A struct's members have comments too: join what is within braces again.
    items: list[tuple[str, str]] = []
    n = 1
    while n < len(parts):
        comment, code = parts[n], parts[n + 1]
        n += 2
        while re.search(r"^typedef[^;]*\{", code, re.M) and not re.search(r"^} \w+;", code, re.M):
            code += f"/**{parts[n]}*/{parts[n + 1]}"
            n += 2
        items.append((comment, code))
    intro = read_comment(items[0][0])
    found: list[Declaration] = []
    for raw, code in items[1:]:
        comment = read_comment(raw)
        if comment.group:
            found.append(Declaration("group", comment.group, "", comment))
            continue
        if comment.closes:
            found.append(Declaration("group", "", "", comment))
            continue
        if comment.opens:
            continue
        code = re.sub(r"^#(?!define).*$", "", code, flags=re.MULTILINE)
        code = re.sub(r'^(extern "C" \{|})$', "", code, flags=re.MULTILINE).strip()
        typedef = re.match(r"typedef (enum|struct) \w+ \{(.*)^} (\w+);", code, re.DOTALL | re.M)
        function = re.match(r"ROCFLASH_API ([^;]*?\b(\w+)\([^;]*\);)$", code, re.DOTALL)
        macro = re.match(r"#define (\w+) .*$", code)
        handle = re.match(r"typedef struct (\w+) \1;$", code)
        if typedef:
            kind, body, name = typedef.groups()
            pattern = r"\w+ = \d+$" if kind == "enum" else r"(const )?\w+\*? \w+$"
            found.append(Declaration(kind, name, "", comment, read_members(body, pattern)))
        elif function:
            found.append(Declaration("function", function[2], function[1], comment))
        elif handle:
            found.append(Declaration("handle", handle[1], handle[0], comment))
        elif macro:
            found.append(Declaration("macro", macro[1], macro[0], comment))
        else:
            raise HeaderError(f"{path.name}: not a declaration:\n{code}")
    documented = {d.name for d in found}
    declared = set(re.findall(r"^ROCFLASH_API[^;(]*?(rocflash_\w+)\(", text, re.MULTILINE))
    declared |= set(re.findall(r"^typedef \w+ (\w+) \{", text, re.MULTILINE))
    if declared != documented & declared:
        raise HeaderError(f"no comment: {', '.join(sorted(declared - documented))}")
    return intro, found


def dedent_code(code: str) -> str:
    """A function's parameters, one on each line if the declaration has several lines."""
    head, _, rest = code.partition("(")
    parameters = [" ".join(p.split()) for p in rest.rsplit(")", 1)[0].split(",")]
    one = f"{head}({', '.join(parameters)});"
    return one if len(one) <= 88 else f"{head}(\n    " + ",\n    ".join(parameters) + ");"


class Writer:
    def __init__(self, declarations: list[Declaration]) -> None:
        self.names = {d.name: d.name for d in declarations if d.kind != "group" and d.name}
        for d in declarations:
            if d.kind == "enum":
                self.names.update({code.split()[0]: d.name for code, _, _ in d.members})
        self.lines: list[str] = []

    def prose(self, text: str, here: str = "") -> str:
        """Escapes text and links the names of declarations."""
        text = re.sub(r"(?<!`)([*_<>|])(?!`)", r"\\\1", text) if "`" not in text else text
        text = text.replace("|", "\\|").replace("\\\\|", "\\|") if "`" in text else text

        def link(match: re.Match[str]) -> str:
            text = match.group().replace("\\", "")
            name = text.removesuffix("()")
            if name not in self.names or self.names[name] == here:
                return f"`{text}`"
            return f"[`{text}`](#{self.names[name]})"

        return re.sub(
            r"(?<![\w`.])(?:rocflash|ROCFLASH)(?:\\?_\w+?)+(?![\w\\])(?:\(\))?", link, text
        )

    def add(self, *lines: str) -> None:
        self.lines += [*lines, ""]

    def declaration(self, d: Declaration) -> None:
        self.add(f"### {d.name} {{ #{d.name} }}")
        if d.code:
            code = dedent_code(d.code) if d.kind == "function" else d.code
            self.add("```c", code, "```")
        self.add(self.prose(d.comment.brief, d.name))
        if d.comment.text:
            self.add(*(self.prose(line, d.name) for line in d.comment.text.splitlines()))
        if d.comment.params:
            self.add("| parameter | |", "|---|---|",
                     *(f"| `{n}` | {self.prose(t, d.name)} |" for n,
                     t in d.comment.params))  # fmt: skip
        if d.comment.returns:
            self.add(f"**Returns** {self.prose(d.comment.returns, d.name)}")
        if d.members:
            self.members(d)

    def members(self, d: Declaration) -> None:
        group, rows = None, []
        for code, text, name in d.members:
            if name != group:
                if rows:
                    self.add(*rows)
                if name:
                    self.add(f"**{self.prose(name)}**")
                first = "value" if d.kind == "enum" else "field"
                rows, group = [f"| {first} | |", "|---|---|"], name
            if d.kind == "enum":
                label = f"`{code}`"
            else:
                kind, member = code.rsplit(" ", 1)
                label = f"`{member}`<br>`{kind}`"
            rows.append(f"| {label} | {self.prose(text, d.name)} |")
        self.add(*rows)


def reference(header: Path) -> str:
    """The page, without its title."""
    intro, declarations = read_header(header)
    writer = Writer(declarations)
    rules = intro.text.split("docs/")[0].strip()
    writer.add(*(re.sub(r"^ - ", "- ", writer.prose(line)) for line in rules.splitlines()))
    # Lists need an empty line before them.
    writer.lines = re.sub(r"([^\n])\n- ", r"\1\n\n- ", "\n".join(writer.lines), count=1).split("\n")
    sections = (("Enumerations", ("enum", "macro")), ("Structs", ("struct", "handle")))
    for title, kinds in sections:
        writer.add(f"## {title}")
        for d in declarations:
            if d.kind in kinds:
                writer.declaration(d)
    writer.add("## Functions")
    for d in declarations:
        if d.kind == "group" and d.name:
            writer.add(f"## {d.name}")
            writer.add(*(writer.prose(line) for line in d.comment.text.splitlines()))
        elif d.kind == "group":
            writer.add("## Information")
        elif d.kind == "function":
            writer.declaration(d)
    text = "\n".join(writer.lines)
    # A heading that closes a group is only needed if functions follow and no other group starts.
    return re.sub(r"## Information\n\s*(?=## )", "", text)
