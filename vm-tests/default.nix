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
  text = name: builtins.readFile (./. + "/${name}.py");
  # The second line of a test may name its guests; they are neighbours on eth1.
  guests =
    name:
    let
      line = lib.elemAt (lib.splitString "\n" (text name)) 1;
    in
    if lib.hasPrefix "# Guests: " line then
      lib.splitString ", " (lib.head (lib.splitString "." (lib.removePrefix "# Guests: " line)))
    else
      [ "machine" ];
  test =
    name:
    pkgs.testers.runNixOSTest {
      name = "hotcell-${lib.replaceStrings [ "_" ] [ "-" ] name}";
      nodes = lib.genAttrs (guests name) (_: {
        imports = [ module ];
        services.hotcell = {
          enable = true;
          images.base = pkgs.hotcellPackages.image-base.tar;
          # Beside what its settings ask for: the test changes those in the guest.
          runtimes.podman.enable = name == "podman";
        };
        environment.systemPackages = [
          pkgs.curl
          pkgs.dnsmasq
          pkgs.iproute2
        ];
        virtualisation = {
          memorySize = 2048;
          diskSize = 8192;
        };
        # What a guest of such a test serves to the other.
        networking.firewall.enable = guests name == [ "machine" ];
      });
      testScript = ''
        TESTS = "${./.}"
      ''
      + library
      + text name;
    };
in
lib.listToAttrs (map (name: lib.nameValuePair "vm-${name}" (test name)) names)
