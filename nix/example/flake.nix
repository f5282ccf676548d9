# A downstream project that uses rocflash: a Python environment with flash_attn, a C program, and a
# NixOS module.
#   nix develop    a shell with python, torch, flash_attn and the rocflash command
#   nix build      the program below
{
  # The repository of this example; other projects use "github:<owner>/rocflash".
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
      # For nixosSystem's `modules`: rocflash in environment.systemPackages.
      nixosModules.default = import ./nixos.nix { flash-attention = rocflash; };

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
