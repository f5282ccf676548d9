"""A griffe extension: lines "name, name: text" of a docstring become a list, sessions become code.

In a terminal such lines are a list as they are; in Markdown they would run into one paragraph.
Docstrings with sections ("Arguments:") are left alone.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"^[a-z_]\w*(?:, [a-z_]\w*)*: \S")
SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns|Return|Yields|Raises):\s*$", re.MULTILINE
)


def listed(text: str) -> str:
    """The text with each paragraph that starts with "name: text" as a list."""
    if SECTION.search(text):
        return text
    paragraphs = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith(">>>"):
            paragraphs.append("\n".join(["```pycon", *lines, "```"]))
            continue
        if not lines or not ITEM.match(lines[0]) or len(lines) == 1:
            paragraphs.append(paragraph)
            continue
        out = []
        for line in lines:
            if ITEM.match(line):
                names, _, rest = line.partition(": ")
                names = ", ".join(f"`{name}`" for name in names.split(", "))
                out.append(f"- {names}: {rest}")
            else:
                out.append(f"  {line}")
        paragraphs.append("\n".join(out))
    return "\n\n".join(paragraphs)


class Lists(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
