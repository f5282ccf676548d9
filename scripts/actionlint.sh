#!/usr/bin/env bash
# Builds actionlint once, with the Go that packaging/requirements-lint.txt pins, into the user's
# cache, and runs it on the workflows. Exit status 77: it cannot be built, because Go's module proxy
# cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

release=v1.7.12
directory=${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/actionlint-$release
tool=$directory/bin/actionlint
tools=$(dirname "$(scripts/python_env.sh lint)")
if [[ ! -x $tool ]]; then
  echo "actionlint.sh: building actionlint $release into $directory" >&2
  if ! GOBIN=$directory/bin GOPATH=$directory/path GOFLAGS=-modcacherw GOTOOLCHAIN=local timeout 300 \
    "$tools/go" install "github.com/rhysd/actionlint/cmd/actionlint@$release" >&2; then
    echo "actionlint.sh: go install failed" >&2
    exit 77
  fi
  rm -rf "$directory/path"
fi
exec "$tool" -color -shellcheck "$tools/shellcheck" .github/workflows/*.yml
