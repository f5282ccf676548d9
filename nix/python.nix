# The Python packages rocflash and flash_attn over the library of nix/library.nix, for
# python3.withPackages.
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
  version = lib.fileContents ../VERSION;
  format = "other";
  src = lib.cleanSource ./..;

  dependencies = [
    einops
    torch
  ];

  # The modules with their metadata, as in a wheel; the compiled files are links into the library
  # package.
  installPhase = ''
    runHook preInstall
    site=$out/${python.sitePackages}
    mkdir -p $site
    ${python.interpreter} packaging/install_modules.py $site
    mkdir -p $site/rocflash/lib $site/rocflash/bin
    ln -s ${library}/lib/librocflash.so.0 $site/rocflash/lib/librocflash.so.0
    ln -s ${library}/bin/rocflash $site/rocflash/bin/rocflash
    # In a profile, the package has the command as well.
    mkdir -p $out/bin
    ln -s ${library}/bin/rocflash $out/bin/rocflash
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
