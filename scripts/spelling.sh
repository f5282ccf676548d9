#!/usr/bin/env bash
# Checks code, comments, documents and messages: the vocabulary of docs/reference/glossary.md, the
# width of comments, and spelling (codespell, configured in pyproject.toml).
set -euo pipefail
cd "$(dirname "$0")/.."

echo "vocabulary"
python3 scripts/vocabulary.py
echo "comment width"
python3 scripts/comment_width.py
echo "codespell"
python=$(scripts/python_env.sh lint)
git ls-files -z --cached --others --exclude-standard | xargs -0 "$python" -m codespell_lib
