# The library, its headers and the command. Nothing is downloaded: kernels are compiled by LLVM from these sources.
{
  lib,
  llvmPackages_22,
  bash,
  cli11,
  cmake,
  dlpack,
  fmt,
  ninja,
  nlohmann_json,
  zstd,
  # GPUs to compile kernels for: "all", "none", or a list such as [ "gfx942" "gfx1100" ].
  gpuArchs ? "all",
}:
llvmPackages_22.stdenv.mkDerivation {
  pname = "rocflash";
  version = "0.1.0";
  src = lib.cleanSource ./..;

  nativeBuildInputs = [
    cmake
    ninja
  ];
  buildInputs = [
    cli11
    dlpack
    fmt
    nlohmann_json
    (zstd.override { enableStatic = true; })
  ];

  # Kernels are compiled by the plain compiler: the wrapper's options are meant for the host.
  cmakeFlags = [
    "-DROCFLASH_GPU_ARCHS=${if lib.isList gpuArchs then lib.concatStringsSep ";" gpuArchs else gpuArchs}"
    "-DROCFLASH_KERNEL_COMPILER=${llvmPackages_22.clang-unwrapped}/bin/clang++"
    "-DROCFLASH_KERNEL_LINKER=${llvmPackages_22.lld}/bin/ld.lld"
    "-DROCFLASH_BASH=${bash}/bin/bash"
    # Programs from the store bring their C library along.
    "-DROCFLASH_GLIBC=none"
    "-DROCFLASH_BUILD_TESTS=OFF"
    "-DROCFLASH_BUILD_EXAMPLES=OFF"
    "-DROCFLASH_BUILD_SIM=OFF"
  ];

  doInstallCheck = true;
  installCheckPhase = ''
    runHook preInstallCheck
    $out/bin/rocflash verify --device cpu
    runHook postInstallCheck
  '';

  meta = {
    description = "Exact attention on CPUs and GPUs";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "rocflash";
    platforms = [ "x86_64-linux" ];
  };
}
