# The library, its headers and the command. Nothing is downloaded: LLVM compiles the kernels from
# these sources.
{
  lib,
  llvmPackages_22,
  addDriverRunpath,
  bash,
  cli11,
  cmake,
  config,
  dlpack,
  fmt,
  ninja,
  nlohmann_json,
  rocmPackages,
  zstd,
  # Whether the HIP runtime of nixpkgs is in the library's search path.
  rocmSupport ? config.rocmSupport or false,
  # GPUs to compile kernels for: "all", "none", or a list such as [ "gfx942" "gfx1100" ].
  gpuArchs ? "all",
}:
llvmPackages_22.stdenv.mkDerivation {
  pname = "rocflash";
  version = lib.fileContents ../VERSION;
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

  # The unwrapped compiler compiles the kernels: the wrapper's options are for the host.
  cmakeFlags = [
    "-DROCFLASH_GPU_ARCHS=${if lib.isList gpuArchs then lib.concatStringsSep ";" gpuArchs else gpuArchs}"
    "-DROCFLASH_KERNEL_COMPILER=${llvmPackages_22.clang-unwrapped}/bin/clang++"
    "-DROCFLASH_KERNEL_LINKER=${llvmPackages_22.lld}/bin/ld.lld"
    "-DROCFLASH_BASH=${bash}/bin/bash"
    # Programs in the store use the store's C library.
    "-DROCFLASH_GLIBC=none"
    "-DROCFLASH_BUILD_TESTS=OFF"
    "-DROCFLASH_BUILD_EXAMPLES=OFF"
    "-DROCFLASH_BUILD_SIM=OFF"
  ];

  # The library opens the drivers at run time, and finds them by its own search path: the GPU
  # drivers of NixOS and, if nixpkgs is configured with rocmSupport, the HIP runtime of nixpkgs. On
  # other systems ROCFLASH_HIP_LIBRARY names the system's.
  postFixup = ''
    patchelf --add-rpath ${addDriverRunpath.driverLink}/lib${lib.optionalString rocmSupport ":${rocmPackages.clr}/lib"} $(readlink -f $out/lib/librocflash.so)
  '';

  doInstallCheck = true;
  installCheckPhase = ''
    runHook preInstallCheck
    $out/bin/rocflash verify --device cpu
    runHook postInstallCheck
  '';

  meta = {
    description = "Exact attention on CPUs and GPUs";
    homepage = lib.fileContents ../REPOSITORY;
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "rocflash";
    platforms = [ "x86_64-linux" ];
  };
}
