#!/usr/bin/env bash
# Makes a virtual environment from a locked list once, and prints the path of its Python. pip takes only files whose hashes are in
# the list, and only wheels, so that nothing runs while they are installed. scripts/lock_requirements.sh writes the lists.
#   scripts/python_env.sh build|test
# They are large (torch), so all clones share them: in the user's cache, or where ROCFLASH_VENVS says.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:?usage: python_env.sh build|test}
list=packaging/requirements-$kind.txt
[[ -e $list ]] || { echo "python_env.sh: no list $list" >&2; exit 2; }
folder=${ROCFLASH_VENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/venv}/$kind
stamp=$folder/.requirements

if ! cmp -s "$list" "$stamp"; then
  echo "python_env.sh: installing $list into $folder" >&2
  [[ -x $folder/bin/python ]] || "${PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --only-binary=:all: -r "$list" >&2
  cp "$list" "$stamp"
fi
echo "$folder/bin/python"
