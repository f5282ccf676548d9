#!/bin/sh
# Finds the compiler and the linker of the GPU kernels. CMake, scripts/setup.sh and packaging/ call
# it, so that all of them use the same tools. Prints
#
#   compiler PATH
#   linker PATH
#
# and, instead of such a line, "missing TEXT" for a tool that was not found. The exit status is 1 if
# a tool is missing. The tools are, in this order:
#
#   - ROCFLASH_KERNEL_COMPILER and ROCFLASH_KERNEL_LINKER, if they are set
#   - clang++-22 and ld.lld-22, as Debian and LLVM's own packages name them
#   - clang++ and ld.lld without a version, if they are of LLVM 22 or newer
#   - those that packaging/kernel_compiler.py installed
set -eu

minimum=22
installed=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/rocflash/llvm-$minimum/bin
# ROCFLASH_LLVM_ROOT: the root of these directories, for tests.
root=${ROCFLASH_LLVM_ROOT:-}
# Paths may contain spaces.
IFS='
'
directories="$root/usr/lib/llvm-$minimum/bin
$root/usr/lib64/llvm$minimum/bin
$root/usr/lib/llvm$minimum/bin
$installed"

# candidates NAME: the paths to try, best first.
candidates() {
  command -v "$1-$minimum" || true
  for directory in $directories; do
    if [ -x "$directory/$1" ]; then echo "$directory/$1"; fi
  done
  command -v "$1" || true
}

# The functions below print why a program cannot serve, or nothing.
compiler_problem() {
  version=$("$1" -dumpversion 2>/dev/null) || version=
  case $version in
    [0-9]*) ;;
    *) echo "$1 does not run" && return ;;
  esac
  if [ "${version%%.*}" -lt "$minimum" ]; then
    echo "$1 is $version"
    return
  fi
  case $("$1" --print-targets 2>/dev/null) in
    *amdgcn*nvptx64*) ;;
    *) echo "$1 lacks the targets amdgcn and nvptx64" ;;
  esac
}

linker_problem() {
  version=$("$1" --version 2>/dev/null | sed -n 's/.*LLD \([0-9][0-9.]*\).*/\1/p') || version=
  if [ -z "$version" ]; then
    echo "$1 does not run"
  elif [ "${version%%.*}" -lt "$minimum" ]; then
    echo "$1 is $version"
  fi
}

problem_of() {
  case $1 in
    compiler) compiler_problem "$2" ;;
    linker) linker_problem "$2" ;;
  esac
}

# search KIND TEXT GIVEN PATHS
search() {
  problem=
  for path in ${3:-$4}; do
    found=$(problem_of "$1" "$path")
    if [ -z "$found" ]; then
      echo "$1 $path"
      return
    fi
    # The problem of the first candidate is reported: it is the one that a user expects.
    problem=${problem:-$found}
  done
  echo "missing $2${problem:+ ($problem)}"
  status=1
}

status=0
search compiler "clang $minimum" "${ROCFLASH_KERNEL_COMPILER:-}" "$(candidates clang++)"
search linker "lld $minimum" "${ROCFLASH_KERNEL_LINKER:-}" "$(candidates ld.lld)"
exit $status
