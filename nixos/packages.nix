# Everything that is built: the daemon, the agent, images, the documentation of the options.
{ pkgs }:
let
  inherit (pkgs) lib;
  workspace = (lib.importTOML ../Cargo.toml).workspace.package;

  # Only what a build reads, so that a change of a page of the guide builds nothing again.
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../Cargo.toml
      ../Cargo.lock
      ../.cargo
      ../crates
      ../docs/api
      ../docs/architecture.md
      ../docs/operating
      ./unit.json
      ./hotcell.service
    ];
  };

  crate =
    name: description: extra:
    {
      pname = name;
      inherit (workspace) version;
      inherit src;
      cargoLock.lockFile = ../Cargo.lock;
      cargoBuildFlags = [
        "--package"
        name
      ];
      cargoTestFlags = [
        "--package"
        name
        "--lib"
      ];
      meta = {
        inherit description;
        license = lib.licenses.asl20;
        mainProgram = name;
        platforms = lib.platforms.linux;
      };
    }
    // extra;

  images = import ./images.nix { inherit pkgs; };

  options =
    (lib.evalModules {
      specialArgs = { inherit pkgs; };
      modules = [
        ./module.nix
        { _module.check = false; }
      ];
    }).options;
in
{
  hotcell = pkgs.rustPlatform.buildRustPackage (
    crate "hotcell" "Sandboxes for chat assistants: the daemon and its command line" {
      nativeBuildInputs = [ pkgs.pkg-config ];
      buildInputs = [
        pkgs.libmnl
        pkgs.libnftnl
      ];
    }
  );

  # Static, since it runs in any image.
  hotcell-agent = pkgs.pkgsStatic.rustPlatform.buildRustPackage (
    crate "hotcell-agent" "The first process of every hotcell sandbox" { }
  );

  inherit (images) image-base image-universal;

  options-doc =
    (pkgs.nixosOptionsDoc {
      options = { inherit (options.services) hotcell; };
    }).optionsCommonMark;
}
