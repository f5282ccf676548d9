#!/usr/bin/env bash
# Prints the changelog's section of one version, for a release's notes:  packaging/release_notes.sh 0.1.0
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: release_notes.sh VERSION}
notes=$(awk -v version="$version" '
  /^## \[/ { inside = index($0, "## [" version "]") == 1; next }
  inside' CHANGELOG.md)
if [[ -z ${notes//[[:space:]]/} ]]; then
  echo "release_notes.sh: CHANGELOG.md has no section [$version]; it has $(sed -n 's/^## \[\([^]]*\)\].*/\1/p' CHANGELOG.md | paste -sd, -)" >&2
  exit 1
fi
echo "$notes"
