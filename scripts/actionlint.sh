#!/usr/bin/env bash
# Finds actionlint, or builds it once with Go into the user's cache, and runs it on the workflows.
# Exit status 77: it is not there and cannot be built.
set -euo pipefail
cd "$(dirname "$0")/.."

release=v1.7.7
folder=${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/actionlint-$release
tool=$(command -v actionlint || echo "$folder/bin/actionlint")
if [[ ! -x $tool ]]; then
  if ! command -v go >/dev/null; then
    echo "actionlint.sh: neither actionlint nor Go is there" >&2
    exit 77
  fi
  echo "actionlint.sh: building actionlint $release into $folder" >&2
  if ! GOBIN=$folder/bin GOPATH=$folder/path GOFLAGS=-modcacherw timeout 300 \
    go install "github.com/rhysd/actionlint/cmd/actionlint@$release" >&2; then
    echo "actionlint.sh: Go could not build it" >&2
    exit 77
  fi
  rm -rf "$folder/path"
fi
exec "$tool" -color .github/workflows/*.yml
