#!/usr/bin/env bash
# Builds a release in dist/: the universal wheels, Debian packages and one stamped wheel, with SBOMs
# and SHA256SUMS. Builds the library a second time in another directory, which must be
# bit-identical, then installs and tests the results. Slow: all kernels are compiled again. Wheels
# and packages of earlier runs are removed first.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
cache() { sed -n "s/^$1:[A-Z]*=//p" build/CMakeCache.txt; }

rm -f dist/*.whl dist/*.deb dist/*.json dist/SHA256SUMS
echo "== wheels"
scripts/wheels.sh build dist

echo "== a second build in another directory, which must give the same wheels"
second=build-dist
rm -rf "$second"
cmake -S . -B "$second" -G "$(cache CMAKE_GENERATOR)" -DCMAKE_BUILD_TYPE=Release -DROCFLASH_GPU_ARCHS="$(cache ROCFLASH_GPU_ARCHS)" \
  -DCMAKE_C_COMPILER="$(cache CMAKE_C_COMPILER)" -DCMAKE_CXX_COMPILER="$(cache CMAKE_CXX_COMPILER)" \
  -DROCFLASH_BUILD_TESTS=OFF -DROCFLASH_BUILD_EXAMPLES=OFF -DROCFLASH_BUILD_SIM=OFF --log-level=WARNING
cmake --build "$second" --parallel "$jobs" --target rocflash rocflash_cli
python3 packaging/universal.py --build "$second" --out "$second/dist" >/dev/null
cmp dist/SHA256SUMS "$second/dist/SHA256SUMS"
echo "bit-identical"

echo "== the wheel that pip builds from a clone: the files of the four wheels"
archs=$(cache ROCFLASH_GPU_ARCHS)
ROCFLASH_BUILD=build PYTORCH_ROCM_ARCH=${archs:-all} "$(scripts/python_env.sh build)" -m pip wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$second/pip" .
names() { for wheel in "$@"; do python3 -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }' | grep -v -e '/$' -e '[.]dist-info/'; done | sort; }
diff <(names "$second"/pip/rocflash-*.whl) <(names dist/rocflash-*.whl dist/flash_attn-*-py3-none-any.whl dist/flash_attn_3-*.whl dist/flash_attn_4-*.whl)

echo "== Debian packages"
cpack -G DEB --config build/CPackConfig.cmake -B build/debs >/dev/null
cp build/debs/*.deb dist/
if command -v lintian >/dev/null; then
  # docs/install.md explains the suppressed tags.
  lintian --allow-root --suppress-tags initial-upload-closes-no-bugs,maintscript-calls-ldconfig,pkg-config-unavailable-for-cross-compilation \
    --fail-on error,warning dist/*.deb
fi

echo "== a stamped wheel"
python=$(scripts/python_env.sh test)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ROCFLASH_BUILD=build PYTORCH_ROCM_ARCH=${archs:-all} ./build_rocm.sh --out dist 2.8.3 "$version" 2.13 7.2

echo "== install and test"
packaging/test_wheel.sh dist/rocflash-*.whl dist/flash_attn-*-py3-none-any.whl dist/flash_attn_3-*.whl dist/flash_attn_4-*.whl
packaging/test_wheel.sh "dist/flash_attn-2.8.3+rocm72torch2.13-cp${version/./}-cp${version/./}-linux_x86_64.whl"

(cd dist && sha256sum -- *.whl *.deb *.json >SHA256SUMS)
echo "== dist/"
ls -l dist
