#!/usr/bin/env bash
# Writes the universal wheels from build/ into dist/, with bills of materials and checksums, and checks them: auditwheel
# must find the tag that they carry, twine reads the descriptions, and a second writing must give the same bits.
#   wheels.sh [build directory [dist directory]]
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build} dist=${2:-dist}
cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target rocflash rocflash_cli
python3 packaging/universal.py --build "$build" --out "$dist"

again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
python3 packaging/universal.py --build "$build" --out "$again" >/dev/null
cmp "$dist/SHA256SUMS" "$again/SHA256SUMS"

python=$(scripts/python_env.sh build)
wheels=("$dist"/rocflash-*.whl "$dist"/flash_attn-*-py3-none-any.whl "$dist"/flash_attn_3-*.whl)
"$python" -m auditwheel show "${wheels[0]}" 2>/dev/null | tr '\n' ' ' |
  grep -q "is consistent with the following platform tag: \"$(basename "${wheels[0]}" .whl | sed 's/.*-//')\"" ||
  { echo "wheels.sh: auditwheel does not agree with the tag of ${wheels[0]}:" >&2
    "$python" -m auditwheel show "${wheels[0]}" >&2
    exit 1; }
"$python" -m twine check --strict "${wheels[@]}"
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
echo "wheels: audited, described, summed; written twice with the same bits"
