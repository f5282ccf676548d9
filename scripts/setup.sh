#!/usr/bin/env bash
# Finds what building rocflash needs, and installs what is missing where it may.
#
#   setup.sh                    install by apt, as root or through sudo; without either, say what to install
#   setup.sh --check            look, install nothing
#   setup.sh --cmake-compilers  print the CMake options that select the compiler
#
# The exit status is 0 when everything needed for building and testing is there. Formatting, linting,
# sanitizers and fuzzing need more; their absence is reported but is no failure.
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

# What is looked for: kind, Debian package, what it is for, and the test that it is there.
items=(
  "needed|g++|the C++ library and a linker|have g++ || have_clang"
  "needed|clang-$llvm|the compiler (GCC $minimum_gcc or newer serves for host code)|have_compiler"
  "needed|cmake|building (at least $minimum_cmake)|have_cmake"
  "needed|make|the commands of the Makefile|have_build_tool"
  "needed|libdlpack-dev|tensors of the C ABI|have_header dlpack/dlpack.h"
  "needed|libcli11-dev|the rocflash command|have_header CLI/CLI.hpp"
  "needed|libfmt-dev|the rocflash command|have_header fmt/core.h"
  "needed|nlohmann-json3-dev|the rocflash command|have_header nlohmann/json.hpp"
  "needed|libgtest-dev|the tests|have_header gtest/gtest.h"
  "needed|libgmock-dev|the tests|have_header gmock/gmock.h"
  "needed|python3-venv|the Python side and its tests|have_venv"
  "extra|clang-$llvm|the compiler this project is developed with, and the one for kernels for GPUs|have_clang"
  "extra|ninja-build|faster builds|have ninja"
  "extra|make|the commands of the Makefile|have make"
  "extra|pkg-config|the test of the installed pkg-config file|have_pkg_config"
  "extra|libclang-rt-$llvm-dev|make sanitize, make fuzz|have_clang_runtime"
  "extra|llvm-$llvm|readable sanitizer reports|have llvm-symbolizer-$llvm"
  "extra|lld-$llvm|kernels for GPUs|have ld.lld-$llvm"
  "extra|libzstd-dev|kernels for GPUs|have_header zstd.h"
  "extra|llvm-$llvm-dev|the AMD GPU simulator|have_llvm"
  "extra|clang-format-$llvm|make format|have clang-format-$llvm"
  "extra|clang-tidy-$llvm|make lint|have clang-tidy-$llvm"
  "extra|shellcheck|make lint, the tests of the scripts|have shellcheck"
  "extra|dpkg-dev|the Debian packages|have dpkg-shlibdeps"
  "extra|lintian|the test of the Debian packages|have lintian"
  "extra|nix-bin|the test of the Nix flake|have nix"
  "extra|curl|fetching Rust for the tests of the crates|have curl || have wget || have cargo"
  "extra|ca-certificates|the same|[[ -d /etc/ssl/certs ]] || have cargo"
)

# Sets the array `missing` to the packages of the given kind whose test fails.
find_missing() {
  local item kind package test
  missing=()
  for item in "${items[@]}"; do
    kind=${item%%|*}
    package=${item#*|}
    package=${package%%|*}
    test=${item#*|*|*|}
    [[ $kind == "$1" ]] || continue
    eval "$test" || missing+=("$package")
  done
}

purpose_of() {
  local item package
  for item in "${items[@]}"; do
    package=${item#*|}
    if [[ ${package%%|*} == "$1" ]]; then
      item=${item#*|*|}
      echo "${item%%|*}"
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
  # Where clang is not to be had, the oldest GCC that will do takes its place; report() says so.
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
    echo "missing, and needed to build and test:"
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

main() {
  local root package
  local -a wanted=()
  case "${1:-}" in
    --cmake-compilers)
      cmake_compilers
      return
      ;;
    --check | "") ;;
    *)
      sed -n '2,9s/^# \{0,1\}//p' "$0"
      [[ $1 == --help ]] && return 0 || return 2
      ;;
  esac
  find_missing needed
  wanted+=(${missing[@]+"${missing[@]}"})
  find_missing extra
  for package in ${missing[@]+"${missing[@]}"}; do
    [[ " ${wanted[*]-} " == *" $package "* ]] || wanted+=("$package")
  done
  if ((${#wanted[@]} == 0)); then
    echo "everything is there"
    return 0
  fi
  if [[ ${1:-} != --check ]] && have apt-get; then
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
