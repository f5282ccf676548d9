#!/usr/bin/env bash
# Writes the universal wheels from build/ into dist/, with SBOMs and checksums, and checks them:
# auditwheel must confirm the platform tag, twine the descriptions, and a second run must give
# bit-identical files.
#   wheels.sh [build directory [dist directory]]
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build} dist=${2:-dist}
cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target rocflash rocflash_cli
python3 packaging/universal.py --build "$build" --out "$dist"

second=$(mktemp -d)
trap 'rm -rf "$second"' EXIT
python3 packaging/universal.py --build "$build" --out "$second" >/dev/null
cmp "$dist/SHA256SUMS" "$second/SHA256SUMS"

python=$(scripts/python_env.sh build)
wheels=("$dist"/rocflash-*.whl "$dist"/flash_attn-*-py3-none-any.whl "$dist"/flash_attn_3-*.whl
  "$dist"/flash_attn_4-*.whl)
"$python" -m auditwheel show "${wheels[0]}" 2>/dev/null | tr '\n' ' ' |
  grep -q "is consistent with the following platform tag: \"$(basename "${wheels[0]}" .whl | sed 's/.*-//')\"" ||
  { echo "wheels.sh: auditwheel disagrees with the tag of ${wheels[0]}:" >&2
    "$python" -m auditwheel show "${wheels[0]}" >&2
    exit 1; }
"$python" -m twine check --strict "${wheels[@]}"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
echo "wheels: platform tag, descriptions and checksums are correct; a second run is bit-identical"
