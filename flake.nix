# The Nix flake: the Python packages (rocflash and flash_attn), the library and command, and a shell
# with ROCm's torch and the dependencies of `make test`. docs/install.md states what was built, and
# what was evaluated only.
{
  description = "rocflash: exact attention on CPUs and GPUs";

  # A channel with LLVM 22, which compiles the kernels.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = import nixpkgs {
        inherit system;
        # torch for ROCm; users of the overlay have their own configuration.
        config.rocmSupport = true;
        overlays = [ self.overlays.default ];
      };
    in
    {
      overlays.default = final: prev: {
        rocflash = final.callPackage ./nix/library.nix { };
        pythonPackagesExtensions = prev.pythonPackagesExtensions ++ [
          (python-final: _: {
            rocflash = python-final.callPackage ./nix/python.nix { library = final.rocflash; };
            flash-attn-3 = python-final.callPackage ./nix/flash-attn-3.nix { };
          })
        ];
      };

      packages.${system} = {
        default = pkgs.python3Packages.rocflash;
        library = pkgs.rocflash;
        flash-attn-3 = pkgs.python3Packages.flash-attn-3;
      };

      devShells.${system}.default = pkgs.callPackage ./nix/shell.nix { };

      checks.${system} = {
        # The installed command against the reference, on the CPU.
        verify = pkgs.runCommand "rocflash-verify" { nativeBuildInputs = [ pkgs.rocflash ]; } ''
          rocflash verify --device cpu > $out
        '';
        # The packages in a Python environment.
        python =
          pkgs.runCommand "rocflash-python"
            { nativeBuildInputs = [ (pkgs.python3.withPackages (packages: [ packages.rocflash ])) ]; }
            ''
              python -c 'import flash_attn, flash_attn_2_cuda, rocflash; print(rocflash.info())' > $out
            '';
      };
    };
}
