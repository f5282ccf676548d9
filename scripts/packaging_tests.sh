#!/usr/bin/env bash
# Runs the tests of packaging: scripts, wheels, packages, workflows, the Nix flake. They use the
# library in build/ (or ROCFLASH_BUILD) and compile nothing. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

export ROCFLASH_BUILD=${ROCFLASH_BUILD:-$PWD/build}
if [[ ! -e $ROCFLASH_BUILD/lib/librocflash.so || ! -e $ROCFLASH_BUILD/bin/rocflash ]]; then
  echo "packaging_tests.sh: $ROCFLASH_BUILD has no library and command; build first" >&2
  exit 2
fi
exec "$(scripts/python_env.sh test)" -m pytest "${@:-tests/packaging}"
