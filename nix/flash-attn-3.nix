# FlashAttention-3's interface (flash_attn_interface, flash_attn_3) over nix/python.nix; a separate
# package, like its wheel.
{
  lib,
  buildPythonPackage,
  python,
  rocflash,
}:
buildPythonPackage {
  pname = "flash-attn-3";
  version = "3.0.0";
  format = "other";
  src = lib.cleanSource ./..;

  dependencies = [ rocflash ];

  installPhase = ''
    runHook preInstall
    site=$out/${python.sitePackages}
    mkdir -p $site
    ${python.interpreter} packaging/install_modules.py $site flash-attn-3
    runHook postInstall
  '';

  pythonImportsCheck = [
    "flash_attn_3"
    "flash_attn_interface"
  ];

  meta = {
    description = "The interface of flash_attn 3 over rocflash";
    license = with lib.licenses; [
      mit
      asl20
    ];
    platforms = [ "x86_64-linux" ];
  };
}
