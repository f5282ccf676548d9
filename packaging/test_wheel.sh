#!/usr/bin/env bash
# Installs wheels into an empty environment, as a user would, and uses them: versions, the raw extension, a forward and a
# backward on the CPU, and a forward through the ROCm loader on the simulator.
#
#   packaging/test_wheel.sh flash_attn-...whl              a stamped wheel, which has everything
#   packaging/test_wheel.sh rocflash-...whl flash_attn-...whl [flash_attn_3-...whl]   the universal ones together
#
#   PYTHON               a Python with torch and numpy, which the empty environment borrows (default: that of the tests)
#   ROCFLASH_SIMULATOR   the stand-in for libamdhip64 (default: build/lib/sim/libamdhip64.so; "none" leaves it out)
#   ROCFLASH_SIM_ARCH    the simulated GPU (default: the first AMD one that the wheel has kernels for)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if (($# == 0)) || [[ $1 == --help ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  [[ ${1:-} == --help ]] && exit 0 || exit 2
fi
for wheel in "$@"; do
  [[ -f $wheel ]] || { echo "test_wheel.sh: $wheel is not there" >&2; exit 2; }
done
python=${PYTHON:-$("$root/scripts/python_env.sh" test)}
simulator=${ROCFLASH_SIMULATOR:-$root/build/lib/sim/libamdhip64.so}
if [[ $simulator != none && ! -e $simulator ]]; then
  echo "test_wheel.sh: no simulator at $simulator; build it, or set ROCFLASH_SIMULATOR=none to go without" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv --without-pip "$work/venv"
inside=$work/venv/bin/python
site=$("$inside" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mine=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
for wheel in "$@"; do
  tag=$(basename "$wheel" | sed -n 's/.*-\(cp3[0-9]*\)-cp3[0-9]*-.*\.whl/\1/p')
  other=()
  if [[ -n $tag && $tag != "$mine" ]]; then
    # pip unpacks wheels of another Python too if it is told which; what is inside is the same for all.
    echo "test_wheel.sh: $wheel is for $tag, tried with $mine"
    other=(--target "$site" --python-version "${tag#cp}" --implementation cp --abi "$tag" --platform linux_x86_64
      --only-binary=:all:)
  fi
  "$python" -m pip --python "$inside" install --quiet --no-index --no-deps --disable-pip-version-check \
    --root-user-action=ignore ${other[@]+"${other[@]}"} "$wheel"
done
# torch and numpy are borrowed, after the installation, so that pip has seen an empty environment.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"

unset PYTHONPATH ROCFLASH_LIBRARY ROCFLASH_HIP_LIBRARY ROCFLASH_BACKEND FLASH_ATTENTION_TRITON_AMD_ENABLE
# oneDNN inside torch trusts a CPUID leaf that some virtual machines leave empty, and dies of it.
export ONEDNN_MAX_CPU_ISA=${ONEDNN_MAX_CPU_ISA:-AVX512_CORE_FP16}
cd "$work"
"$inside" -I "$root/packaging/smoke.py" "$site"
if [[ $simulator == none ]]; then
  echo "simulated GPU: left out"
else
  arch=${ROCFLASH_SIM_ARCH:-$("$inside" -I -c \
    'import rocflash; print(next((t["arch"] for t in rocflash.targets() if t["driver"] == "hip"), ""))')}
  [[ -n $arch ]] || { echo "test_wheel.sh: the wheel has no kernels for AMD GPUs" >&2; exit 1; }
  ROCFLASH_HIP_LIBRARY=$simulator ROCFLASH_SIM_ARCH=$arch ROCFLASH_SIM_DEVICES=2 ROCFLASH_BACKEND=auto \
    "$inside" -I "$root/tests/python/simulated_gpu.py"
  echo "simulated GPU: forward on $arch through the ROCm loader"
fi
echo "installed and used: $*"
