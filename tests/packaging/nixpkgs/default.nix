# A stub of the part of nixpkgs' interface that rocflash's flake uses. A package is only its name;
# each request is traced, and a name that nixpkgs does not have (the lists below were checked
# against it) is an error. Derivations keep their arguments, so that a test can read them and run
# their phases.
{
  system,
  config ? { },
  overlays ? [ ],
}:
let
  package =
    name:
    builtins.trace "requested ${name}" {
      inherit name;
      outPath = "/requested/${name}";
      override = changes: package "${name}.override{${toString (builtins.attrNames changes)}}";
    };
  packages = names: prefix: builtins.listToAttrs (map (name: { inherit name; value = package "${prefix}${name}"; }) names);

  lib = {
    cleanSource = source: source;
    concatMapStringsSep = between: change: list: builtins.concatStringsSep between (map change list);
    concatStringsSep = builtins.concatStringsSep;
    fileContents = file: builtins.replaceStrings [ "\n" ] [ "" ] (builtins.readFile file);
    getDev = wanted: "${wanted}.dev";
    isList = builtins.isList;
    licenses = { mit = "MIT"; asl20 = "Apache-2.0"; };
    optionalString = wanted: text: if wanted then text else "";
    makeLibraryPath = list: builtins.concatStringsSep ":" (map (wanted: "${wanted}/lib") list);
  };

  mkDerivation =
    kind: args:
    derivation {
      name = args.name or "${args.pname or "shell"}-${args.version or "0"}";
      inherit system;
      builder = "/bin/sh";
      arguments = builtins.toJSON (builtins.removeAttrs args [ "meta" ]);
    }
    // { inherit args kind; };

  callPackageWith =
    scope: package: given:
    let
      function = if builtins.isFunction package then package else import package;
    in
    function (builtins.intersectAttrs (builtins.functionArgs function) scope // given);

  base =
    final:
    packages [ "bash" "cli11" "cmake" "dlpack" "dpkg" "fmt" "gcc13" "git" "gnumake" "gtest" "ninja" "nlohmann_json" "pkg-config" "shellcheck" "zstd" ] ""
    // {
      inherit lib config system;
      addDriverRunpath.driverLink = "/run/opengl-driver";
      callPackage = callPackageWith final;
      llvmPackages_22 = packages [ "clang" "clang-tools" "clang-unwrapped" "lld" "llvm" ] "llvmPackages_22." // {
        stdenv.mkDerivation = mkDerivation "llvmPackages_22.stdenv";
      };
      mkShell = { __functor = _: mkDerivation "shell"; override = changes: mkDerivation "shell with ${toString (builtins.attrNames changes)}"; };
      pythonPackagesExtensions = [ ];
      python3 = {
        interpreter = "python3";
        outPath = "/requested/python3";
        sitePackages = "lib/python3/site-packages";
        withPackages =
          choose:
          let
            chosen = map (package: "${package}") (choose final.python3Packages);
          in
          { outPath = builtins.concatStringsSep " " ([ "/requested/python3.withPackages" ] ++ chosen); };
      };
      python3Packages =
        let
          python-base = python-final:
            packages [ "einops" "packaging" "pip" "psutil" ] "python3Packages."
            // {
              torch = package "python3Packages.torch${if config.rocmSupport or false then "{rocmSupport}" else ""}";
            }
            // {
              inherit lib;
              buildPythonPackage = mkDerivation "buildPythonPackage";
              callPackage = callPackageWith python-final;
              python = final.python3;
            };
          whole = builtins.foldl' (before: extension: before // extension whole before) (python-base whole) final.pythonPackagesExtensions;
        in
        whole;
      rocmPackages = packages [ "clr" "hipblas" "hipfft" "hiprand" "hipsparse" "rccl" "rocblas" "rocsolver" "rocthrust" ] "rocmPackages.";
      runCommand = name: environment: script: mkDerivation "runCommand" (environment // { inherit name script; });
      stdenv.mkDerivation = mkDerivation "stdenv";
    };
  whole = builtins.foldl' (before: overlay: before // overlay whole before) (base whole) overlays;
in
whole
