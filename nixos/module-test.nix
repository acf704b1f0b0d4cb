# Each planted fault of a configuration must be caught by an assertion that names it, and a good one by none.
{
  pkgs,
  nixosSystem,
  module,
}:
let
  inherit (pkgs) lib;
  evaluate =
    hotcell:
    (nixosSystem {
      modules = [
        module
        {
          nixpkgs.pkgs = pkgs;
          services.hotcell = hotcell // {
            enable = true;
          };
        }
      ];
    }).config;
  complaints =
    hotcell:
    map (one: one.message) (
      lib.filter (one: !one.assertion && lib.hasInfix "services.hotcell" one.message)
        (evaluate hotcell).assertions
    );
  refused = hotcell: word: lib.any (lib.hasInfix word) (complaints hotcell);
  evaluates =
    hotcell:
    (builtins.tryEval (builtins.deepSeq (evaluate hotcell).services.hotcell.settings true)).success;
  forwards = hotcell: (evaluate hotcell).boot.kernel.sysctl ? "net.ipv4.ip_forward";
  service = hotcell: (evaluate hotcell).systemd.services.hotcell.serviceConfig;
  open = hotcell: (evaluate hotcell).networking.firewall.allowedTCPPorts;
  key = "/run/secrets/key";
  # Typed keys must be keys: this one is built, and so checked.
  allKeys =
    (evaluate {
      storeKeyFile = key;
      operatorTokenFile = key;
      settings = {
        listen = "[::1]:9000";
        state_dir = "/srv/hotcell";
        worker_threads = 4;
        runtime = {
          kind = "embedded";
          oci_runtime = "runsc";
          image = "base";
        };
        limits = {
          start_timeout_ms = 90000;
          idle_timeout_ms = 600000;
          hard_timeout_ms = 3600000;
          volume_bytes = 4294967296;
          scratch_bytes = 1073741824;
          max_sandboxes = 8;
        };
        organizations.acme = {
          name = "Acme";
          enabled = true;
          profile = "default";
          network_policy.egress = [
            {
              action = "allow";
              target = "*.example.com";
            }
          ];
        };
        workspaces.docs = {
          organization = "acme";
          name = "Docs";
          enabled = true;
          quotas = {
            max_concurrent = 5;
            max_resource_class = "LARGE";
            max_job_seconds = 60;
            max_artifact_bytes_per_day = 1073741824;
            max_jobs_per_hour = 10;
          };
        };
        log = {
          level = "info";
          format = "json";
        };
      };
    }).environment.etc."hotcell/hotcell.toml".source;
in
assert complaints { } == [ ];
assert
  complaints {
    storeKeyFile = key;
    openFirewall = true;
    settings.listen = "0.0.0.0:9000";
  } == [ ];
assert refused { storeKeyFile = "${builtins.storeDir}/key"; } "storeKeyFile";
assert refused { operatorTokenFile = "relative"; } "operatorTokenFile";
assert refused { openFirewall = true; } "openFirewall";
assert refused { runtimes.embedded.enable = false; } "runtime.kind";
assert refused { settings.workspaces.w1.organization = "none"; } "workspaces.w1.organization";
assert
  complaints {
    settings.organizations.acme = { };
    settings.workspaces.w1.organization = "acme";
  } == [ ];
assert !evaluates { settings.workspaces.w1.enabled = true; };
assert !evaluates { settings.organizations.acme.enabled = "yes"; };
assert !evaluates { settings.workspaces.w1.quotas.max_concurrent = -1; };
assert !evaluates { settings.limits.idle_timeout_ms = 5; };
assert !evaluates { settings.runtime.kind = "kata"; };
assert evaluates { settings.limits.idle_timeout_ms = 60000; };
assert !(forwards { });
assert forwards { settings.runtime.network = "filtered"; };
assert open { } == [ ];
assert lib.elem 9000 (open {
  openFirewall = true;
  settings.listen = "0.0.0.0:9000";
});
assert (service { storeKeyFile = key; }).LoadCredential == [ "store.key:${key}" ];
assert (service { }).LoadCredential == [ ];
pkgs.runCommand "hotcell-module-test" { inherit allKeys; } "cp $allKeys $out"
