#!/usr/bin/env bash
# Writes packaging/requirements-{build,docs,test}.txt from the lists of the same name that end in
# .in: all packages and their dependencies, pinned, with the hashes of their files.
# scripts/python_env.sh installs nothing else. Run it after a change of such a list. Locked versions
# are kept unless --upgrade is given. Installs uv into a temporary directory, and needs a package
# index.
#   scripts/lock_requirements.sh [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/../packaging"

oldest_python=3.11 # the oldest Python of the tests: Debian bookworm's
uv_release=0.13.7
case "${1:-}" in
  "") upgrade=() ;;
  --upgrade) upgrade=(--upgrade) ;;
  *)
    echo "lock_requirements.sh: argument: $1; must be --upgrade" >&2
    exit 2
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: "uv==$uv_release"
for kind in build docs lint test; do
  [[ ! -e requirements-$kind.txt ]] || cp "requirements-$kind.txt" "$work/lock.txt"
  "$work/venv/bin/uv" pip compile --quiet --native-tls --universal --python-version "$oldest_python" --generate-hashes \
    --no-annotate --no-header ${upgrade[@]+"${upgrade[@]}"} --output-file "$work/lock.txt" "requirements-$kind.in"
  {
    head -n 1 "requirements-$kind.in"
    echo "# Written by scripts/lock_requirements.sh from requirements-$kind.in: every package with the hashes of its files. Do not edit."
    cat "$work/lock.txt"
  } >"requirements-$kind.txt"
  rm "$work/lock.txt"
done
