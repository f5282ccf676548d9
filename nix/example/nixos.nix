# A NixOS module with rocflash for all users: the command, and a Python with torch and flash_attn.
# `inputs` has this repository as flash-attention, as in flake.nix here.
inputs:
{ pkgs, ... }:
{
  nix.settings.experimental-features = [
    "nix-command"
    "flakes"
  ];

  environment.systemPackages = [
    # The command `rocflash`, and the modules below the profile's lib.
    inputs.flash-attention.packages.${pkgs.system}.default
    # The modules where `python3` imports them.
    (pkgs.python3.withPackages (packages: [ packages.rocflash ]))
  ];
  nixpkgs.overlays = [ inputs.flash-attention.overlays.default ];

  # Puts the HIP runtime into /run/opengl-driver/lib, where the library searches it.
  hardware.graphics = {
    enable = true;
    extraPackages = [ pkgs.rocmPackages.clr ];
  };
}
