# The Python packages rocflash and flash_attn over the library of nix/library.nix, for python3.withPackages.
{
  lib,
  buildPythonPackage,
  python,
  library,
  einops,
  torch,
}:
buildPythonPackage {
  pname = "rocflash";
  version = "0.1.0";
  format = "other";
  src = lib.cleanSource ./..;

  dependencies = [
    einops
    torch
  ];

  # The modules with their metadata, as a wheel has them; the compiled files are the library's own.
  installPhase = ''
    runHook preInstall
    site=$out/${python.sitePackages}
    mkdir -p $site
    ${python.interpreter} packaging/install_modules.py $site
    mkdir -p $site/rocflash/lib $site/rocflash/bin
    ln -s ${library}/lib/librocflash.so.0 $site/rocflash/lib/librocflash.so.0
    ln -s ${library}/bin/rocflash $site/rocflash/bin/rocflash
    runHook postInstall
  '';

  pythonImportsCheck = [
    "flash_attn"
    "flash_attn_2_cuda"
    "rocflash"
  ];

  meta = {
    description = "Exact attention for torch, and the interfaces of flash_attn";
    license = with lib.licenses; [
      mit
      asl20
    ];
    platforms = [ "x86_64-linux" ];
  };
}
