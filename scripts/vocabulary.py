#!/usr/bin/env python3
"""Checks that code, comments, documents and messages use the field's words.

usage: scripts/vocabulary.py [PATH ...]

Reads every tracked text file (or those under PATH) and reports each word of scripts/vocabulary.txt
as file, line, word and what to write instead. Without PATH it also reports exceptions that no file
needs any more. Exit status: 0 nothing found, 1 something found, 2 usage.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "scripts" / "vocabulary.txt"
# Data, generated lists, other projects' texts, and this check.
SKIPPED = re.compile(
    r"\.(csv|lock|png|svg|co|ptx|zst|hsaco|bin)$|requirements-.*\.txt$|(^|/)LICENSE|/native/"
    r"|^(benchmarks/results|tests/sim/data)/|^scripts/vocabulary\.|^tests/packaging/test_vocabulary\."
)


def read_rules(path):
    """Returns [(prefixes, pattern, advice)] and, of what is allowed, [(prefix, pattern, line)]."""
    rules, allowed, prefixes = [], [], ("",)
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            prefixes = tuple("" if p == "*" else p for p in line[1:-1].split())
        elif line.startswith("allow "):
            prefix, _, pattern = line[len("allow ") :].partition(": ")
            allowed.append((prefix, re.compile(pattern, re.IGNORECASE), number))
        elif " => " in line:
            pattern, _, advice = line.partition(" => ")
            rules.append((prefixes, re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), advice))
        else:
            sys.exit(f"{path.name}:{number}: not a rule: {line}")
    return rules, allowed


def split_names(line):
    """snake_case, kebab-case and CamelCase as words."""
    line = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line)
    return re.sub(r"[_\-]+", " ", line)


def tracked_files(paths):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [name for name in listed.split("\0") if name and not SKIPPED.search(name)]


def findings(name, text, rules, allowed, needed):
    """Yields (line, word, advice); adds the lines of the exceptions that apply to `needed`."""
    here = [(pattern, advice) for prefixes, pattern, advice in rules if name.startswith(prefixes)]
    exceptions = [(pattern, line) for prefix, pattern, line in allowed if name.startswith(prefix)]
    for number, line in enumerate([name, *text.splitlines()]):
        words = split_names(line)
        for pattern, advice in here:
            for match in pattern.finditer(words):
                applying = {line for e, line in exceptions if e.fullmatch(match.group())}
                needed |= applying
                if not applying:
                    yield number, match.group(), advice


def main(arguments):
    if any(a.startswith("-") for a in arguments):
        print(
            __doc__.strip(), file=sys.stderr if arguments[0] not in ("-h", "--help") else sys.stdout
        )
        return 0 if arguments[0] in ("-h", "--help") else 2
    rules, allowed = read_rules(RULES)
    needed = set()
    count = 0
    for name in tracked_files(arguments):
        path = ROOT / name
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, word, advice in findings(name, text, rules, allowed, needed):
            # Line 0 is the file's own name.
            print(f"{name}:{number or 'name'}: {word!r}: write {advice}")
            count += 1
    unneeded = [] if arguments else [line for _, _, line in allowed if line not in needed]
    for line in unneeded:
        print(f"{RULES.relative_to(ROOT)}:{line}: no file needs this exception: delete it")
    if count:
        print(f"{count} words to replace", file=sys.stderr)
    return 1 if count or unneeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
