# A project of someone else that uses rocflash: a Python environment with flash_attn, and a C program.
#   nix develop    a shell with python, torch, flash_attn and the rocflash command
#   nix build      the program below
{
  # Here the repository around this example; elsewhere "github:<owner>/rocflash".
  inputs.rocflash.url = "path:../..";
  inputs.nixpkgs.follows = "rocflash/nixpkgs";

  outputs =
    { nixpkgs, rocflash, ... }:
    let
      system = "x86_64-linux";
      pkgs = import nixpkgs {
        inherit system;
        overlays = [ rocflash.overlays.default ];
      };
    in
    {
      devShells.${system}.default = pkgs.mkShell {
        packages = [
          pkgs.rocflash
          (pkgs.python3.withPackages (packages: [ packages.rocflash ]))
        ];
      };

      packages.${system}.default = pkgs.stdenv.mkDerivation {
        name = "attention";
        src = "${rocflash}/examples";
        buildInputs = [
          pkgs.dlpack
          pkgs.rocflash
        ];
        buildPhase = "$CC attention.c -lrocflash -o attention";
        installPhase = "install -D attention $out/bin/attention";
      };
    };
}
