#!/usr/bin/env bash
# Cross-builds the library, the command and the tests for 64-bit Windows, with the GPU kernels of a
# build for this machine, and runs them with Wine, without a display. Needs clang 22, lld 22,
# llvm-22, and Debian's g++-mingw-w64-x86-64-posix, googletest and wine64; for GPU kernels on the
# simulator also wine64-tools and libwine-dev.
#   windows_test.sh [build directory]     the kernels' build; by default build/
# WINDOWS_TEST_ARCHS and WINDOWS_TEST_EVERY are the simulated GPUs and the stride over their cases.
# VERIFY_ARGS has the arguments of `rocflash verify` on the CPU, by default every fifth quick case.
# WINDOWS_PYTHON names a python.exe for Windows, such as that of the embeddable package: then the
# wheel is installed next to NumPy and tested with it.
set -euo pipefail
cd "$(dirname "$0")/.."

kernels=$(realpath "${1:-build}")
out=$PWD/build-windows
# clang searches mingw-w64 relative to its compiler, and must not find ccache's link to it.
PATH=$(tr : '\n' <<<"$PATH" | grep -v ccache | paste -sd :)
launcher=()
! command -v ccache >/dev/null ||
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

fail() { # fail STATUS MESSAGE
  echo "windows_test.sh: $2" >&2
  exit "$1"
}

need() { # need FILE-OR-COMMAND PACKAGE
  [[ -e $1 ]] || command -v "$1" >/dev/null || fail 2 "$1 not found; install $2"
}
need x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
need /usr/src/googletest/CMakeLists.txt googletest
need llvm-readobj-22 llvm-22
wine=$(command -v wine64 || true)
[[ -n $wine ]] || wine=/usr/lib/wine/wine64
need "$wine" wine64

if [[ ! -e $out/CMakeCache.txt ]]; then
  python3 packaging/zstd_source.py "$out/zstd"
  cmake --preset windows-x86_64 -G Ninja --log-level=WARNING -DROCFLASH_KERNELS_FROM="$kernels" \
    -DROCFLASH_ZSTD_SOURCE="$out/zstd" ${launcher[@]+"${launcher[@]}"}
fi
cmake --build "$out" --parallel "${JOBS:-2}"

# The DLL exports what the library for Linux does, and needs DLLs of Windows alone.
exports=$(llvm-readobj-22 --coff-exports "$out/bin/rocflash.dll" |
  sed -n 's/^ *Name: \(rocflash_.*\)/\1/p' | sort)
headers=(include/rocflash/rocflash.h src/api/{python,measure}.hpp src/xla/handlers.hpp)
listed=$(grep -hoE '^ROCFLASH_API .*\brocflash_\w+\(' "${headers[@]}" |
  sed -E 's/.*\b(rocflash_\w+)\($/\1/' | sort)
diff <(echo "$exports") <(echo "$listed") ||
  fail 1 "rocflash.dll exports other functions than the headers declare"
python3 - "$out" <<'PYTHON'
import sys
from pathlib import Path

sys.path.insert(0, "packaging")
import audit

for name in ("rocflash.dll", "rocflash.exe"):
    print(name, *audit.windows_needs(Path(sys.argv[1]) / "bin" / name).libraries)
PYTHON

# No installers of Mono and Gecko, and no debugger that waits for a user.
export WINEPREFIX=$out/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml=;winedbg.exe=d"
rocflash() { "$wine" "$out/bin/rocflash.exe" "$@" </dev/null; }
"$wine" wineboot --init >/dev/null 2>&1
"$wine" winecfg -v win10 >/dev/null 2>&1
ctest --test-dir "$out" --output-on-failure -L windows
rocflash version
rocflash info
rocflash doctor
read -r -a verify <<<"${VERIFY_ARGS:---quick --every 5}"
rocflash verify --device cpu --quiet "${verify[@]}"

rm -rf "$out/wheels" "$out/site"
python3 packaging/universal.py --build "$out" --out "$out/wheels" >/dev/null
python3 packaging/audit.py "$out"/wheels/rocflash-*-win_amd64.whl
if [[ -n ${WINDOWS_PYTHON:-} ]]; then
  # Python for Windows rejects some of the standard streams that Wine passes on.
  python() { "$wine" "$WINDOWS_PYTHON" "$@" </dev/null 2>&1 | cat; }
  version=$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])' | tr -d '\r')
  # Newer NumPy calls functions that Wine 8 lacks.
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$out/site" --platform win_amd64 --python-version "$version" --only-binary=:all: \
    'numpy<2.2' "$out"/wheels/rocflash-*-win_amd64.whl
  python "$(winepath -w tests/platform/windows/package.py)" "$(winepath -w "$out/site")"
fi

# The simulator as amdhip64_7.dll: a library of Wine's kind passes the calls on to it.
simulator=$kernels/lib/sim/libamdhip64.so
if [[ ! -e $simulator || -z $(command -v winegcc) || -z $(command -v winebuild) ]]; then
  fail 0 "no kernels were run: that needs $simulator, wine64-tools and libwine-dev"
fi
bridge=$out/simulator
mkdir -p "$bridge"
clang-22 -O2 -fPIC -Wall -Wextra -Werror -Isrc -c tests/platform/windows/wine/simulator.c \
  -o "$bridge/simulator.o"
comm -12 <(nm -D --defined-only "$simulator" | awk '{ print $3 }' | sort) \
  <(nm --defined-only "$bridge/simulator.o" | sed -n 's/.* wine_\(hip\w*\)$/\1/p' | sort) |
  sed 's/.*/@ cdecl &() wine_&/' >"$bridge/amdhip64_7.spec"
winegcc -m64 -shared -o "$bridge/amdhip64_7.dll.so" "$bridge/amdhip64_7.spec" \
  "$bridge/simulator.o" -ldl
winebuild -m64 --dll --fake-module -o "$bridge/amdhip64_7.dll" "$bridge/amdhip64_7.spec"
for arch in ${WINDOWS_TEST_ARCHS:-gfx1100 gfx942}; do
  echo "== $arch on the simulator"
  WINEDLLPATH=$bridge ROCFLASH_WINE_SIMULATOR=$simulator ROCFLASH_SIM_ARCH=$arch \
    ROCFLASH_HIP_LIBRARY=$(winepath -w "$bridge/amdhip64_7.dll") \
    rocflash verify --device hip:0 --quick --every "${WINDOWS_TEST_EVERY:-150}" --quiet
done
