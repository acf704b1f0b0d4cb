# One test a file: every *.py beside this one. They are the same that `cargo xtask vm-test` runs on Debian guests.
{ pkgs, module }:
let
  inherit (pkgs) lib;
  library = builtins.readFile ./lib.py;
  names = map (lib.removeSuffix ".py") (
    lib.filter (name: lib.hasSuffix ".py" name && name != "lib.py") (
      lib.attrNames (builtins.readDir ./.)
    )
  );
  test =
    name:
    pkgs.testers.runNixOSTest {
      name = "hotcell-${lib.replaceStrings [ "_" ] [ "-" ] name}";
      nodes.machine = {
        imports = [ module ];
        services.hotcell = {
          enable = true;
          images.base = pkgs.hotcellPackages.image-base.tar;
        };
        environment.systemPackages = [
          pkgs.curl
          pkgs.iproute2
        ];
        virtualisation = {
          memorySize = 2048;
          diskSize = 8192;
        };
      };
      testScript = library + builtins.readFile (./. + "/${name}.py");
    };
in
lib.listToAttrs (map (name: lib.nameValuePair "vm-${name}" (test name)) names)
