#!/usr/bin/env python3
"""Checks that comments and docstrings are at most 100 columns wide.

usage: scripts/comment_width.py [--fix] [PATH ...]

Reads every tracked source file (or those under PATH). --fix wraps running text; tables, usage
lines and URLs are reported. Exit status: 0 nothing found, 1 something found, 2 usage.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
C_LIKE = (".c", ".cpp", ".h", ".hpp", ".inc")
HASHED = (".cmake", ".py", ".sh", ".yml", "CMakeLists.txt", "Makefile")
URL = re.compile(r"https?://\S{40}")


def marker_of(name):
    """The pattern of a comment line: indentation, marker, text."""
    if name.endswith(C_LIKE):
        return re.compile(r"^(\s*)(///?|\*)( )(.*)$")
    if name.endswith(".rs"):
        return re.compile(r"^(\s*)(//[/!]?)( )(.*)$")
    return re.compile(r"^(\s*)(#)( )(.*)$") if name.endswith(HASHED) else None


def docstrings(source):
    """(first, last) line of each docstring, from 1."""
    for node in ast.walk(ast.parse(source)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0].lineno, node.body[0].end_lineno


def split(text, columns):
    """`text` cut at the last space within `columns`, or None if it cannot be cut."""
    at = text.rfind(" ", 1, columns + 1)
    return None if at < 1 else (text[:at], text[at + 1 :])


def is_running_text(text):
    return bool(text) and not text[0].isspace() and not re.search(r"\S {2,}\S", text)


def starts_paragraph(text):
    """List items and the entries of argument lists stay on lines of their own."""
    return bool(re.match(r"[-*] |\d+\. |\w[\w, ]*: ", text))


def wrap(lines, prefix, text_of):
    """Wraps lines in place. A cut line's rest goes before the text of the next line of its
    paragraph. text_of: the text of a line after `prefix`, or None if it is no such line.
    """
    n = 0
    while n < len(lines):
        text = text_of(lines[n])
        cut = None
        if (
            len(lines[n]) > WIDTH
            and text is not None
            and is_running_text(text)
            and not URL.search(text)
        ):
            cut = split(text, WIDTH - len(prefix))
        if cut is not None:
            lines[n] = prefix + cut[0]
            following = text_of(lines[n + 1]) if n + 1 < len(lines) else None
            if following and is_running_text(following) and not starts_paragraph(following):
                lines[n + 1] = f"{prefix}{cut[1]} {following}"
            else:
                lines.insert(n + 1, prefix + cut[1])
        n += 1


def wrap_comments(lines, pattern):
    """Each block of comment lines with the same indentation and marker."""
    found, block, key = [], [], None

    def flush():
        if key is not None:
            prefix = "".join(key)
            wrap(block, prefix, lambda x: x[len(prefix) :] if x.startswith(prefix) else None)
        found.extend(block)
        block.clear()

    for line in lines:
        match = pattern.match(line)
        own = match.groups()[:3] if match else None
        if own != key:
            flush()
            key = own
        block.append(line)
    flush()
    return found


def wrap_docstring(lines):
    indent = re.match(r"\s*", lines[0]).group()
    if not lines[-1].rstrip().endswith('"""'):
        return lines
    if lines[-1].strip() != '"""' and len(lines[-1]) > WIDTH:
        lines = [*lines[:-1], lines[-1].rstrip()[:-3], indent + '"""']

    def text_of(line):
        own = line[len(indent) :] if line.startswith(indent) else None
        return None if own == '"""' else own

    lines = list(lines)
    wrap(lines, indent, text_of)
    return lines


def fixed(name, source):
    pattern = marker_of(name)
    lines = source.split("\n")
    if name.endswith(".py"):
        for first, last in sorted(docstrings(source), reverse=True):
            if any(len(x) > WIDTH for x in lines[first - 1 : last]):
                lines[first - 1 : last] = wrap_docstring(lines[first - 1 : last])
    return "\n".join(wrap_comments(lines, pattern))


def too_wide(name, source):
    pattern = marker_of(name)
    lines = source.split("\n")
    inside = set()
    if name.endswith(".py"):
        inside = {n for first, last in docstrings(source) for n in range(first, last + 1)}
    for number, line in enumerate(lines, 1):
        if len(line) > WIDTH and (number in inside or pattern.match(line)) and not URL.search(line):
            yield number, len(line)


def main(arguments):
    fix = "--fix" in arguments
    paths = [a for a in arguments if a != "--fix"]
    if any(a.startswith("-") for a in paths):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    count = 0
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if marker_of(name) is None or not path.is_file() or path.is_symlink():
            continue
        source = path.read_text(encoding="utf-8")
        if fix and (wrapped := fixed(name, source)) != source:
            path.write_text(wrapped, encoding="utf-8")
            source = wrapped
        for number, width in too_wide(name, source):
            print(f"{name}:{number}: comment of {width} columns; at most {WIDTH}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
