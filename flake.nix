{
  description = "Sandboxes for chat assistants: an appliance that runs their code behind gVisor";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forAllSystems =
        make:
        lib.genAttrs systems (
          system:
          make (
            import nixpkgs {
              inherit system;
              overlays = [ self.overlays.default ];
            }
          )
        );
    in
    {
      overlays.default = final: _: {
        hotcellPackages = import ./nixos/packages.nix { pkgs = final; };
        inherit (final.hotcellPackages) hotcell hotcell-agent;
      };

      packages = forAllSystems (
        pkgs:
        let
          ours = pkgs.hotcellPackages;
        in
        {
          inherit (ours)
            hotcell
            hotcell-agent
            image-base
            image-universal
            options-doc
            ;
          default = ours.hotcell;
        }
      );

      # Sets no overlay, so that it also works where the package set is fixed.
      nixosModules.default =
        { pkgs, lib, ... }:
        let
          ours = self.packages.${pkgs.stdenv.hostPlatform.system};
        in
        {
          imports = [ ./nixos/module.nix ];
          services.hotcell = {
            package = lib.mkDefault ours.hotcell;
            agentPackage = lib.mkDefault ours.hotcell-agent;
          };
        };

      checks = forAllSystems (
        pkgs:
        import ./vm-tests {
          inherit pkgs;
          module = self.nixosModules.default;
        }
        // {
          inherit (pkgs.hotcellPackages) hotcell hotcell-agent options-doc;
          module = import ./nixos/module-test.nix {
            inherit pkgs;
            inherit (lib) nixosSystem;
            module = self.nixosModules.default;
          };
          formatting = pkgs.runCommand "hotcell-nix-formatting" { } ''
            cd ${./.}
            ${lib.getExe pkgs.nixfmt} --check flake.nix nixos/*.nix vm-tests/*.nix
            ${lib.getExe pkgs.deadnix} --fail flake.nix nixos vm-tests
            touch $out
          '';
        }
      );

      devShells = forAllSystems (pkgs: {
        default = import ./nixos/shell.nix { inherit pkgs; };
      });

      formatter = forAllSystems (pkgs: pkgs.nixfmt);
    };
}
