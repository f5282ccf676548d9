#!/usr/bin/env bash
# Finds what rocflash needs for a purpose, and installs what is missing where it may.
#
#   setup.sh [LEVEL]            install by apt, as root or through sudo; without either, say what to install
#   setup.sh --check [LEVEL]    look, install nothing
#   setup.sh --list [LEVEL]     print the Debian packages of that level, whether they are there or not
#   setup.sh --cmake-compilers  print the CMake options that select the compiler
#
# LEVEL says what for; each has what the one before it has:
#   verify   to build the library and the command (make verify, make install)
#   test     to run all tests and to build wheels and packages (make test, make dist)
#   all      to format, lint, fuzz and run under sanitizers; this is the default
#
# The exit status is 0 when everything that building at this level cannot do without is there. The absence of the rest is reported
# but is no failure: what needs it is left out, and says so.
set -euo pipefail

llvm=22
minimum_gcc=12
minimum_cmake=3.25

have() { command -v "$1" >/dev/null 2>&1; }

# Any C or C++ compiler's default search path has /usr/include and /usr/local/include; the rest is
# where CMake or the compiler were told to look.
have_header() {
  local directory
  local -a roots=()
  IFS=: read -r -a roots <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
  for directory in "${roots[@]}" /usr/include /usr/local/include; do
    [[ -n $directory && -e $directory/$1 ]] && return 0
  done
  IFS=':;' read -r -a roots <<<"${CMAKE_PREFIX_PATH:-}"
  for directory in ${roots[@]+"${roots[@]}"}; do
    [[ -n $directory && -e $directory/include/$1 ]] && return 0
  done
  return 1
}

at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

have_clang() { have "clang-$llvm" && have "clang++-$llvm"; }

# Prints the suffix of a GCC that is new enough: "" for plain gcc and g++, else "-14" and so on.
gcc_suffix() {
  local suffix
  for suffix in "" -16 -15 -14 -13 -12; do
    if have "gcc$suffix" && have "g++$suffix" && at_least "$minimum_gcc" "$("g++$suffix" -dumpversion)"; then
      echo "$suffix"
      return 0
    fi
  done
  return 1
}

have_compiler() { have_clang || gcc_suffix >/dev/null; }
have_cmake() { have cmake && at_least "$minimum_cmake" "$(cmake --version | sed -n '1s/[^0-9]*//p')"; }
have_clang_runtime() {
  have_clang && [[ -e $("clang-$llvm" -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a ||
    -e $("clang-$llvm" -print-resource-dir)/lib/$(uname -m)-pc-linux-gnu/libclang_rt.fuzzer.a ]]
}
have_llvm() { [[ -e /usr/lib/llvm-$llvm/lib/cmake/llvm/LLVMConfig.cmake ]]; }
have_venv() { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }
have_build_tool() { have ninja || have make; }
have_pkg_config() { have pkg-config || have pkgconf; }

# What is looked for: level, kind, Debian package, what it is for, and the test that it is there.
items=(
  "verify|needed|g++|the C++ library and a linker|have g++ || have_clang"
  "verify|needed|clang-$llvm|the compiler (GCC $minimum_gcc or newer serves for host code)|have_compiler"
  "verify|needed|cmake|building (at least $minimum_cmake)|have_cmake"
  "verify|needed|make|the commands of the Makefile|have_build_tool"
  "verify|needed|libdlpack-dev|tensors of the C ABI|have_header dlpack/dlpack.h"
  "verify|needed|libcli11-dev|the rocflash command|have_header CLI/CLI.hpp"
  "verify|needed|libfmt-dev|the rocflash command|have_header fmt/core.h"
  "verify|needed|nlohmann-json3-dev|the rocflash command|have_header nlohmann/json.hpp"
  "verify|extra|clang-$llvm|the compiler this project is developed with, and the one for kernels for GPUs|have_clang"
  "verify|extra|ninja-build|faster builds|have ninja"
  "verify|extra|make|the commands of the Makefile|have make"
  "verify|extra|lld-$llvm|kernels for GPUs|have ld.lld-$llvm"
  "verify|extra|libzstd-dev|kernels for GPUs|have_header zstd.h"
  "test|needed|libgtest-dev|the tests|have_header gtest/gtest.h"
  "test|needed|libgmock-dev|the tests|have_header gmock/gmock.h"
  "test|needed|python3-venv|the Python side and its tests|have_venv"
  "test|extra|pkg-config|the test of the installed pkg-config file|have_pkg_config"
  "test|extra|llvm-$llvm-dev|the AMD GPU simulator|have_llvm"
  "test|extra|shellcheck|make lint, the tests of the scripts|have shellcheck"
  "test|extra|dpkg-dev|the Debian packages|have dpkg-shlibdeps"
  "test|extra|lintian|the test of the Debian packages|have lintian"
  "test|extra|nix-bin|the test of the Nix flake|have nix"
  "test|extra|curl|fetching Rust for the tests of the crates|have curl || have wget || have cargo"
  "test|extra|ca-certificates|the same|[[ -d /etc/ssl/certs ]] || have cargo"
  "all|extra|libclang-rt-$llvm-dev|make sanitize, make fuzz|have_clang_runtime"
  "all|extra|llvm-$llvm|readable sanitizer reports|have llvm-symbolizer-$llvm"
  "all|extra|clang-format-$llvm|make format|have clang-format-$llvm"
  "all|extra|clang-tidy-$llvm|make lint|have clang-tidy-$llvm"
)

# The parts of an item: sets level, kind, package, purpose and test.
take() {
  IFS='|' read -r level kind package purpose _ <<<"$1"
  test=${1#*|*|*|*|}
}

# Whether an item of this level belongs to the level that was asked for.
belongs() {
  case "$wanted_level" in
    all) return 0 ;;
    test) [[ $1 != all ]] ;;
    verify) [[ $1 == verify ]] ;;
  esac
}

# Sets the array `missing` to the packages of the given kind whose test fails.
find_missing() {
  local item level kind package purpose test
  missing=()
  for item in "${items[@]}"; do
    take "$item"
    if [[ $kind == "$1" ]] && belongs "$level"; then
      eval "$test" || missing+=("$package")
    fi
  done
}

packages_of_level() {
  local item level kind package purpose test
  for item in "${items[@]}"; do
    take "$item"
    if belongs "$level"; then echo "$package"; fi
  done | sort -u
}

purpose_of() {
  local item level kind package purpose test
  for item in "${items[@]}"; do
    take "$item"
    if [[ $package == "$1" ]]; then
      echo "$purpose"
      return
    fi
  done
}

list() {
  local package
  for package in "$@"; do printf '  %-22s %s\n' "$package" "$(purpose_of "$package")"; done
}

# Prints how to become root, or fails. Asks for a password only at a terminal.
become_root() {
  if [[ $(id -u) == 0 ]]; then
    echo "env"
  elif have sudo && sudo -n true 2>/dev/null; then
    echo "sudo -n"
  elif have sudo && [[ -t 0 && -t 2 ]]; then
    echo "sudo"
  else
    return 1
  fi
}

# Installs what the package lists know of the given packages, in one go.
install_packages() {
  local -a root available=()
  local package
  read -r -a root <<<"$1"
  shift
  # Old lists, or a refused package, may still do; report() has the last word.
  "${root[@]}" apt-get update -qq || echo "the package lists could not be renewed"
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      available+=("$package")
    else
      echo "not in this system's package lists: $package ($(purpose_of "$package"))"
    fi
  done
  # Where there is no package of clang, the oldest GCC that is new enough takes its place; report() says so.
  if ! apt-cache show "clang-$llvm" >/dev/null 2>&1 && ! gcc_suffix >/dev/null; then
    for package in "g++-$minimum_gcc" "g++-$((minimum_gcc + 1))" "g++-$((minimum_gcc + 2))"; do
      if apt-cache show "$package" >/dev/null 2>&1; then
        available+=("$package")
        break
      fi
    done
  fi
  if ((${#available[@]} > 0)); then
    echo "installing: ${available[*]}"
    "${root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      -o Dpkg::Use-Pty=0 "${available[@]}" >/dev/null || echo "installing failed"
  fi
}

report() {
  find_missing extra
  if ((${#missing[@]} > 0)); then
    echo "not there, needed only for what is named:"
    list "${missing[@]}"
  fi
  if ! have_clang && have_compiler; then
    echo "clang $llvm is not there: host code is built with g++$(gcc_suffix) ($("g++$(gcc_suffix)" -dumpfullversion))"
  fi
  find_missing needed
  if ((${#missing[@]} > 0)); then
    echo "missing, and needed for level $wanted_level:"
    list "${missing[@]}"
    if have apt-get; then
      echo "install them as root:  apt-get install ${missing[*]}"
    else
      echo "the names are Debian's; install the same from this system's packages or set CMAKE_PREFIX_PATH"
    fi
    return 1
  fi
}

cmake_compilers() {
  local suffix
  if have_clang; then
    echo "-DCMAKE_C_COMPILER=clang-$llvm -DCMAKE_CXX_COMPILER=clang++-$llvm"
  elif suffix=$(gcc_suffix); then
    echo "-DCMAKE_C_COMPILER=gcc$suffix -DCMAKE_CXX_COMPILER=g++$suffix"
  else
    echo "no compiler: clang $llvm or GCC $minimum_gcc or newer is needed" >&2
    return 1
  fi
}

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }

main() {
  local root package look=no
  local -a wanted=()
  case "${1:-}" in
    --cmake-compilers)
      cmake_compilers
      return
      ;;
    --check | --list)
      look=${1#--}
      shift
      ;;
  esac
  wanted_level=${1:-all}
  case "$wanted_level" in
    verify | test | all) ;;
    --help)
      usage
      return 0
      ;;
    *)
      echo "setup.sh: $wanted_level; the levels are verify, test and all" >&2
      usage >&2
      return 2
      ;;
  esac
  if [[ $look == list ]]; then
    packages_of_level
    return
  fi
  find_missing needed
  wanted+=(${missing[@]+"${missing[@]}"})
  find_missing extra
  for package in ${missing[@]+"${missing[@]}"}; do
    [[ " ${wanted[*]-} " == *" $package "* ]] || wanted+=("$package")
  done
  if ((${#wanted[@]} == 0)); then
    echo "everything for level $wanted_level is there"
    return 0
  fi
  if [[ $look == no ]] && have apt-get; then
    if root=$(become_root); then
      install_packages "$root" "${wanted[@]}"
      hash -r
    else
      echo "neither root nor sudo: nothing was installed"
    fi
  fi
  report
}

main "$@"
