#!/usr/bin/env bash
# Creates a virtual environment from a locked list once, and prints the path of its Python. pip
# installs only files whose hashes are in the list, and only wheels, so that no package runs code
# during installation. scripts/lock_requirements.sh writes the lists.
#   scripts/python_env.sh build|docs|lint|test
# The environments are large (torch), so all clones share them, in the user's cache or
# ROCFLASH_VENVS.
set -euo pipefail
cd "$(dirname "$0")/.."

(($# == 1)) || { echo "usage: python_env.sh build|docs|lint|test" >&2; exit 2; }
kind=$1
list=packaging/requirements-$kind.txt
[[ -e $list ]] || { echo "python_env.sh: $list does not exist; the argument must be build, docs, lint or test" >&2; exit 2; }
directory=${ROCFLASH_VENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/venv}/$kind
stamp=$directory/.requirements

# Commands that start at the same time wait for the one that installs.
mkdir -p "$directory"
if command -v flock >/dev/null; then
  exec 9>"$directory.lock"
  flock 9
fi
if ! cmp -s "$list" "$stamp"; then
  echo "python_env.sh: installing $list into $directory" >&2
  [[ -x $directory/bin/python ]] || "${PYTHON:-python3}" -m venv "$directory"
  "$directory/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --only-binary=:all: -r "$list" >&2
  cp "$list" "$stamp"
fi
echo "$directory/bin/python"
