"""MkDocs hooks: pages from outside docs/, links to sources, the C API page, the navigation.

- A navigation entry that ends in "/" lists the pages of a directory, in the order of the links on
  its first page.
- CHANGELOG.md and others are pages of the site although they are not in docs/.
- A link to a file outside docs/ goes to the repository, whose address is REPOSITORY_URL or
  `extra.repository`. Without an address the link becomes text. A file that does not exist is an
  error.
- The text of a link that is a page's file name becomes the page's title.
- Numbered lists and titles of code blocks are as on the repository's host.
- Pages with Mermaid diagrams get its script, which is part of the site.
- `<!-- c-api -->` is replaced by the reference of include/rocflash/rocflash.h.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

import c_api  # noqa: E402
import mermaid  # noqa: E402

log = logging.getLogger("mkdocs.hooks.rocflash")  # a warning fails a strict build

OUTSIDE = {
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/conduct.md": "CODE_OF_CONDUCT.md",
    "project/security.md": "SECURITY.md",
}
DIAGRAMS = "assets/mermaid.min.js"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)((?:\s+\"[^\"]*\")?)\)")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def directory_pages(docs: Path, directory: str) -> list[str]:
    """The pages of a directory: its first page, then those that it links to, then the others."""
    found = sorted(p.relative_to(docs).as_posix() for p in (docs / directory).glob("*.md"))
    first = [p for p in found if p.rsplit("/", 1)[-1] in ("index.md", "README.md")]
    linked: list[str] = []
    for page in first:
        for _, _, target, _ in LINK.findall((docs / page).read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(directory, target.split("#")[0]))
            if path in found and path not in first and path not in linked:
                linked.append(path)
    return first + linked + [p for p in found if p not in first and p not in linked]


def expand(docs: Path, entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: expand(docs, value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [expand(docs, value) for value in entry]
    return directory_pages(docs, entry) if entry.endswith("/") else entry


def on_config(config: Any) -> Any:
    config.nav = expand(Path(config.docs_dir), config.nav)
    address = os.environ.get("REPOSITORY_URL") or config.extra.get("repository") or ""
    config.extra["repository"] = address.rstrip("/")
    if address:
        link = {"icon": "fontawesome/brands/git-alt", "link": address, "name": "Source code"}
        config.extra["social"] = [link]
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, source in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    if any("```mermaid" in file.content_string for file in files.documentation_pages()):
        files.append(File.generated(config, DIAGRAMS, content=mermaid.script()))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    if 'class="mermaid"' not in output:
        return output
    path = posixpath.relpath(DIAGRAMS, posixpath.dirname(page.url) or ".")
    # Before the theme's own script, which would load Mermaid from another host.
    return output.replace("</head>", f'<script src="{path}"></script></head>', 1)


def heading(page: Path) -> str:
    """The title of a page."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else page.name


def rewrite(page: str, markdown: str, repository: str) -> str:
    """Markdown of a page whose links that leave docs/ go to the repository."""
    source = OUTSIDE.get(page, f"docs/{page}")
    inside = {path: name for name, path in OUTSIDE.items()}

    def one(match: re.Match[str]) -> str:
        image, text, target, title = match.groups()
        if re.match(r"\w+:|#|/", target):
            return match.group()
        path, _, anchor = target.partition("#")
        anchor = f"#{anchor}" if anchor else ""
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        name = inside.get(resolved)
        if name is None and resolved.startswith("docs/"):
            name = resolved.removeprefix("docs/")
        if name is not None and not (ROOT / resolved).is_dir():
            here = posixpath.relpath(name, posixpath.dirname(page) or ".")
            if re.fullmatch(r"[\w./-]+\.md", text) and (ROOT / resolved).exists():
                text = heading(ROOT / resolved)
            return f"{image}[{text}]({here}{anchor}{title})"
        if not (ROOT / resolved).exists():
            log.warning("%s: the link %s names no file of the repository", source, target)
            return match.group()
        if not repository:
            known = f"/{resolved}".endswith(f"/{text.strip('`')}") or text.strip("`") == path
            return f"`{resolved}`" if known else f"{text} (`{resolved}`)"
        kind = "tree" if (ROOT / resolved).is_dir() else "blob"
        return f"{image}[{text}]({repository}/{kind}/main/{resolved}{anchor}{title})"

    # Code blocks keep their text.
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [LINK.sub(one, markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*pieces, LINK.sub(one, markdown[end:])])


TITLED = re.compile(r"^( *)```(\w+) (\S+)$")
LANGUAGES = {"inc": "cpp", "case": "cpp", "arguments": "cpp"}


def normalize(markdown: str) -> str:
    """Markdown as Python-Markdown reads it.

    Numbered items indent by four columns, not by three, and a code block's file is its title.
    """
    lines: list[str] = []
    in_item = has_code = False
    for line in markdown.split("\n"):
        starts = bool(re.match(r"\d+\. ", line))
        if starts and in_item and has_code and lines[-1].strip():
            lines.append("")  # else the line would continue the text after the code
        in_item = starts or (in_item and line[:3] in ("", "   "))
        has_code = in_item and (has_code or "```" in line)
        if in_item and line.startswith("   "):
            line = f" {line}"
        if titled := TITLED.match(line):
            indent, language, file = titled.groups()
            line = f'{indent}```{LANGUAGES.get(language, language)} title="{file}"'
        if re.match(r" {4,}```\w", line) and in_item and lines and lines[-1].strip():
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if "<!-- c-api -->" in markdown:
        header = ROOT / "include" / "rocflash" / "rocflash.h"
        markdown = markdown.replace("<!-- c-api -->", c_api.reference(header))
    return rewrite(page.file.src_uri, normalize(markdown), config.extra["repository"])
