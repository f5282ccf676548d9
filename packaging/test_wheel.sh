#!/usr/bin/env bash
# Installs wheels into an empty environment and tests them: versions, the raw extension, forward and
# backward on the CPU, and forward through the ROCm loader on the simulator.
#
#   packaging/test_wheel.sh flash_attn-...whl       a stamped wheel, which is self-contained
#   packaging/test_wheel.sh rocflash-...whl flash_attn-...whl [flash_attn_N-...whl ...]
#                                                   the universal wheels together
#
#   PYTHON               a Python with torch and numpy, which the environment imports from (default:
#                        that of the tests)
#   ROCFLASH_SIMULATOR   the simulator's libamdhip64 (default: build/lib/sim/libamdhip64.so; "none"
#                        skips the simulator)
#   ROCFLASH_SIM_ARCH    the simulated GPU (default: the first AMD architecture of the wheel)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [[ ${1:-} == --help ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 0
fi
if (($# == 0)); then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
for wheel in "$@"; do
  [[ -f $wheel ]] || { echo "test_wheel.sh: $wheel does not exist" >&2; exit 2; }
done
python=${PYTHON:-$("$root/scripts/python_env.sh" test)}
simulator=${ROCFLASH_SIMULATOR:-$root/build/lib/sim/libamdhip64.so}
if [[ $simulator != none && ! -e $simulator ]]; then
  echo "test_wheel.sh: no simulator at $simulator; build it, or set ROCFLASH_SIMULATOR=none to skip it" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv --without-pip "$work/venv"
venv_python=$work/venv/bin/python
site=$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own_tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
for wheel in "$@"; do
  tag=$(basename "$wheel" | sed -n 's/.*-\(cp3[0-9]*\)-cp3[0-9]*-.*\.whl/\1/p')
  other=()
  if [[ -n $tag && $tag != "$own_tag" ]]; then
    # pip installs a wheel of another Python version with these options; the contents are the same
    # for all.
    echo "test_wheel.sh: $wheel is for $tag, tested with $own_tag"
    other=(--target "$site" --python-version "${tag#cp}" --implementation cp --abi "$tag" --platform linux_x86_64
      --only-binary=:all:)
  fi
  "$python" -m pip --python "$venv_python" install --quiet --no-index --no-deps --disable-pip-version-check \
    --root-user-action=ignore ${other[@]+"${other[@]}"} "$wheel"
done
# torch and numpy are added after the installation, so that pip installs into an empty environment.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"

unset PYTHONPATH ROCFLASH_LIBRARY ROCFLASH_HIP_LIBRARY ROCFLASH_BACKEND FLASH_ATTENTION_TRITON_AMD_ENABLE
# torch's oneDNN crashes on virtual machines that leave a CPUID leaf empty.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE_FP16}
cd "$work"
"$venv_python" -I "$root/packaging/smoke.py" "$site"
if [[ $simulator == none ]]; then
  echo "simulated GPU: skipped"
else
  arch=${ROCFLASH_SIM_ARCH:-$("$venv_python" -I -c \
    'import rocflash; print(next((t["arch"] for t in rocflash.targets() if t["driver"] == "hip"), ""))')}
  [[ -n $arch ]] || { echo "test_wheel.sh: the wheel has no kernels for AMD GPUs" >&2; exit 1; }
  ROCFLASH_HIP_LIBRARY=$simulator ROCFLASH_SIM_ARCH=$arch ROCFLASH_SIM_DEVICES=2 ROCFLASH_BACKEND=auto \
    "$venv_python" -I "$root/tests/python/simulated_gpu.py"
  echo "simulated GPU: forward on $arch through the ROCm loader"
fi
echo "installed and tested: $*"
