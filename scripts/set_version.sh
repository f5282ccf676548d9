#!/usr/bin/env bash
# Sets the version of the library, the packages and the crates.
#   scripts/set_version.sh X.Y.Z      writes VERSION and every file that has to repeat it
#   scripts/set_version.sh --check    exit status 1 names the files that differ from VERSION
# CMake, the wheels, Nix, Debian packages and release notes read VERSION. The files below cannot:
# users and package managers read them without this tree. CHANGELOG.md is written by hand.
set -euo pipefail
cd "${ROCFLASH_SOURCE:-$(dirname "$0")/..}"

usage="usage: set_version.sh X.Y.Z | --check"
case ${1:?$usage} in
  --check) check=1 version=$(<VERSION) ;;
  *) check=0 version=$1 ;;
esac
if [[ $# != 1 || ! $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]]; then
  echo "set_version.sh: '$version' is not a version X.Y.Z; $usage" >&2
  exit 2
fi
IFS=. read -r major minor patch <<<"$version"

number='[0-9]+\.[0-9]+\.[0-9]+'
status=0
written=$(mktemp)
trap 'rm -f "$written"' EXIT
# edit FILE EXPRESSION...: rewrites the file by sed -E; with --check compares instead.
edit() {
  local file=$1 expression expressions=()
  shift
  for expression in "$@"; do expressions+=(-e "$expression"); done
  sed -E "${expressions[@]}" "$file" >"$written"
  if ! grep -qF -e "$version" -e "latest $major.$minor.x" "$written"; then
    echo "set_version.sh: $file has no version to replace" >&2
    status=1
  elif cmp -s "$file" "$written"; then
    :
  elif ((check)); then
    echo "set_version.sh: $file differs from VERSION; scripts/set_version.sh $version sets it" >&2
    status=1
  else
    cat "$written" >"$file"
  fi
}

((check)) || echo "$version" >VERSION
edit include/rocflash/rocflash.h \
  "s/^(#define ROCFLASH_VERSION_MAJOR) .*/\1 $major/" "s/^(#define ROCFLASH_VERSION_MINOR) .*/\1 $minor/" \
  "s/^(#define ROCFLASH_VERSION_PATCH) .*/\1 $patch/" "s/(version as text, such as \")$number/\1$version/"
edit python/rocflash/__init__.py "s/^__version__ = \"$number\"/__version__ = \"$version\"/"
for package in flash-attn flash-attn-3 flash-attn-4; do
  edit python/$package/pyproject.toml "s/rocflash(==| )$number/rocflash\1$version/"
done
edit rust/Cargo.toml "s/^version = \"$number\"/version = \"$version\"/" \
  "s/^(rocflash(-sys)? = .*version = )\"$number\"/\1\"$version\"/"
edit rust/Cargo.lock "/^name = \"(rocflash|rocflash-sys|candle-flash-rocm)\"$/{n;s/\"$number\"/\"$version\"/}"
edit rust/rocflash-sys/src/lib.rs "s/(ROCFLASH_VERSION_MAJOR: i32 =) .*;/\1 $major;/" \
  "s/(ROCFLASH_VERSION_MINOR: i32 =) .*;/\1 $minor;/" "s/(ROCFLASH_VERSION_PATCH: i32 =) .*;/\1 $patch;/" \
  "s/^( *\/\/\/ )\"$number\"$/\1\"$version\"/"
edit rust/rocflash/src/info.rs "s/(library's version, such as )\"$number\"/\1\"$version\"/"
edit SECURITY.md "s/latest [0-9]+\.[0-9]+\.x/latest $major.$minor.x/"
edit docs/install.md "s/\brocflash $number/rocflash $version/"
exit $status
