#!/usr/bin/env bash
# Sets the address of the published repository, which packages, crates and documents name.
#   scripts/set_repository.sh https://HOST/OWNER/rocflash   writes REPOSITORY and the files that
#                                                           repeat it
#   scripts/set_repository.sh none      removes it: packages then have no links
#   scripts/set_repository.sh --check   exit status 1 names the files that differ from REPOSITORY
# CMake, the wheels, the Debian packages and Nix read REPOSITORY. Crates, pyproject.toml of the pure
# Python distributions, mkdocs.yml and the command in docs/install.md cannot.
set -euo pipefail
cd "${ROCFLASH_SOURCE:-$(dirname "$0")/..}"

usage="usage: set_repository.sh https://HOST/PATH | none | --check"
check=0
case ${1:?$usage} in
  --check) check=1 address=$(<REPOSITORY) ;;
  none) address= ;;
  *) address=${1%/} address=${address%.git} ;;
esac
if [[ $# != 1 || ($1 != --check && $1 != none && ! $address =~ ^https://[A-Za-z0-9._-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)+$) ]]; then
  echo "set_repository.sh: '$1' is not an address https://HOST/PATH; $usage" >&2
  exit 2
fi

status=0
written=$(mktemp)
trap 'rm -f "$written"' EXIT
# replace FILE: its new contents are in $written.
replace() {
  if cmp -s "$1" "$written"; then
    :
  elif ((check)); then
    echo "set_repository.sh: $1 differs from REPOSITORY; scripts/set_repository.sh ${address:-none} sets it" >&2
    status=1
  else
    cat "$written" >"$1"
  fi
}
# insert FILE AFTER LINE...: the lines after the first line that is AFTER, in place of the earlier
# ones. Without an address there are none.
insert() {
  local file=$1 after=$2 line lines=
  shift 2
  if [[ -n $address ]]; then
    for line in "$@"; do lines+=$line$'\n'; done
  fi
  grep -qxF "$after" "$file" || { echo "set_repository.sh: $file has no line '$after'" >&2 && exit 1; }
  LINES_TO_INSERT=$lines awk -v after="$after" '
    /^(homepage|repository|Homepage|Repository|Changelog|urls\.[A-Za-z]+|repo_url) ?[:=]/ { next }
    { print }
    $0 == after && !done { printf "%s", ENVIRON["LINES_TO_INSERT"]; done = 1 }' "$file" >"$written"
  replace "$file"
}

((check)) || printf '%s' "${address:+$address$'\n'}" >REPOSITORY
for crate in candle-flash-rocm rocflash rocflash-sys; do
  insert rust/$crate/Cargo.toml 'authors.workspace = true' "homepage = \"$address\"" "repository = \"$address\""
done
for package in flash-attn flash-attn-3 flash-attn-4; do
  insert python/$package/pyproject.toml '[project]' "urls.Homepage = \"$address\"" "urls.Repository = \"$address\""
done
insert mkdocs.yml 'site_name: rocflash' "repo_url: $address"
sed -E "s|git clone https://[^ ]+ rocflash|git clone ${address:-https://HOST/OWNER/rocflash} rocflash|" docs/install.md >"$written"
replace docs/install.md
exit $status
