# The development shell: dependencies of `make test`, Python with ROCm's torch, flash_attn and pip,
# ROCm's libraries, and the environment variables of ROCm builds.
{
  lib,
  llvmPackages_22,
  mkShell,
  runCommand,
  cli11,
  cmake,
  dlpack,
  dpkg,
  fmt,
  gcc13,
  git,
  gnumake,
  gtest,
  ninja,
  nlohmann_json,
  pkg-config,
  python3,
  rocmPackages,
  shellcheck,
  zstd,
}:
let
  libraries = [
    cli11
    dlpack
    fmt
    gtest
    llvmPackages_22.llvm
    nlohmann_json
    (zstd.override { enableStatic = true; })
  ];
  # The scripts call LLVM's tools by Debian's names, which have the version. Under that name the
  # compiler is the unwrapped one, for kernels: the wrapper's options are for the host, which uses
  # CC and CXX.
  versioned-tools = runCommand "llvm-names" { } ''
    mkdir -p $out/bin
    for tool in clang clang++; do
      ln -s ${llvmPackages_22.clang-unwrapped}/bin/$tool $out/bin/$tool-22
    done
    ln -s ${llvmPackages_22.lld}/bin/ld.lld $out/bin/ld.lld-22
    for tool in clang-format clang-tidy; do
      ln -s ${llvmPackages_22.clang-tools}/bin/$tool $out/bin/$tool-22
    done
  '';
  # The shell's `python`. torch is ROCm's if nixpkgs is configured with rocmSupport, as in the
  # flake.
  python = python3.withPackages (packages: [
    packages.einops
    packages.packaging
    packages.pip
    packages.psutil
    packages.rocflash
    packages.torch
  ]);
  rocm = [
    rocmPackages.clr
    rocmPackages.hipblas
    rocmPackages.hipfft
    rocmPackages.hiprand
    rocmPackages.hipsparse
    rocmPackages.rccl
    rocmPackages.rocblas
    rocmPackages.rocsolver
    rocmPackages.rocthrust
  ];
in
mkShell.override { stdenv = llvmPackages_22.stdenv; } {
  packages = [
    cmake
    dpkg
    gcc13
    git
    gnumake
    llvmPackages_22.lld
    versioned-tools
    ninja
    pkg-config
    python
    shellcheck
  ]
  ++ libraries
  ++ rocm;

  # scripts/setup.sh searches these for headers, CMake for packages.
  CMAKE_PREFIX_PATH = lib.concatMapStringsSep ":" (library: "${lib.getDev library}") libraries;
  CMAKE_LIBRARY_PATH = lib.makeLibraryPath libraries;

  ROCM_PATH = "${rocmPackages.clr}";
  HIP_PATH = "${rocmPackages.clr}";
  BUILD_TARGET = "rocm";
  FLASH_ATTENTION_TRITON_AMD_ENABLE = "false";
  # clang generates the fastest CPU kernels, and the simulator needs it; for GCC 13: make CC=gcc
  # CXX=g++.
  shellHook = ''
    export CC=clang CXX=clang++
  '';
}
