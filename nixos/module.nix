# services.hotcell: one option set, one hardened unit. The unit itself is described in unit.json, which other hosts'
# unit is made of as well.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib)
    mkEnableOption
    mkIf
    mkOption
    types
    ;
  cfg = config.services.hotcell;
  unit = builtins.fromJSON (builtins.readFile ./unit.json);
  toml = pkgs.formats.toml { };

  nullable =
    type: description:
    mkOption {
      type = types.nullOr type;
      default = null;
      inherit description;
    };
  milliseconds = nullable (types.ints.between 100 2592000000);

  # Nulls mean: not set.
  withoutNulls =
    value:
    if lib.isAttrs value then
      lib.mapAttrs (_: withoutNulls) (lib.filterAttrs (_: inner: inner != null) value)
    else
      value;
  # Empty tables are left out.
  settings = lib.filterAttrs (_: value: value != { }) (withoutNulls cfg.settings);
  plain = toml.generate "hotcell.toml" settings;
  checked = pkgs.runCommand "hotcell-checked.toml" { } ''
    ${lib.getExe cfg.package} check-config --offline ${plain}
    cp ${plain} $out
  '';
  canCheck = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;
  configFile = if canCheck then checked else plain;

  place =
    lib.replaceStrings
      [
        "@hotcell@"
        "@config@"
      ]
      [
        (lib.getExe cfg.package)
        "/etc/hotcell/hotcell.toml"
      ];
  placeAll = value: if lib.isList value then map place value else place value;

  credentialFiles = {
    "store.key" = cfg.storeKeyFile;
    "operator.token" = cfg.operatorTokenFile;
  };
  credentials = lib.filter (one: credentialFiles.${one.name} != null) unit.credentials;

  isOutsideStore =
    file: file == null || (lib.hasPrefix "/" file && !lib.hasPrefix builtins.storeDir file);
  enabled = lib.filter (name: cfg.runtimes.${name}.enable) [
    "embedded"
    "docker"
    "podman"
  ];
  isLoopback = lib.any (prefix: lib.hasPrefix prefix cfg.settings.listen) [
    "127."
    "[::1]"
  ];
  hasNetwork = cfg.settings.runtime.network == "filtered";
in
{
  options.services.hotcell = {
    enable = mkEnableOption "hotcell, sandboxes for chat assistants";

    package = mkOption {
      type = types.package;
      description = "The daemon and its command line. The flake's module sets it.";
    };

    agentPackage = mkOption {
      type = types.package;
      description = "The static agent that is placed into every sandbox. The flake's module sets it.";
    };

    settings = mkOption {
      default = { };
      description = ''
        The configuration, as in {file}`docs/operating/configuration.md`. What is null is left at its default.
        It is checked when the system is built. Secrets do not belong here: they would be readable by everybody.
      '';
      type = types.submodule {
        freeformType = (pkgs.formats.json { }).type;
        options = {
          listen = mkOption {
            type = types.strMatching ".+:[0-9]+";
            default = "127.0.0.1:8470";
            description = "Where HTTP listens.";
          };
          state_dir = nullable types.path "Everything that outlives a reboot; {file}`/var/lib/hotcell` when null.";
          worker_threads = nullable (types.ints.between 1 256) "Threads that serve.";
          runtime = {
            kind = mkOption {
              type = types.enum [
                "embedded"
                "docker"
                "podman"
              ];
              default = "embedded";
              description = "What makes the sandboxes of the profile `default`.";
            };
            oci_runtime = nullable types.str "`auto`, `runsc`, `crun`, `runc`, or an absolute path.";
            socket = nullable types.str "The engine's Unix socket, for `docker` and `podman`.";
            image = nullable types.str "What sandboxes run: an image's name or digest.";
            network = nullable (types.enum [
              "none"
              "filtered"
            ]) "Whether sandboxes reach anything; `filtered` makes this host forward.";
          };
          limits = {
            start_timeout_ms = milliseconds "How long a call waits for its sandbox, in milliseconds.";
            idle_timeout_ms = milliseconds "How long a sandbox may be unused, in milliseconds.";
            hard_timeout_ms = milliseconds "How long a sandbox may live, in milliseconds.";
            volume_bytes = nullable types.ints.unsigned "The size of each persistent volume, in bytes; 0 for none.";
            scratch_bytes = nullable types.ints.positive "The size of {file}`/workspace`, in bytes.";
            max_sandboxes = nullable types.ints.positive "Sandboxes at once.";
          };
          organizations = mkOption {
            default = { };
            example = lib.literalExpression "{ acme = { enabled = true; network_policy.egress = [ ]; }; }";
            description = ''
              Organizations that are declared: made so at every start, and read-only in the API. What is no longer declared
              stays as it is and can be changed there.
            '';
            type = types.attrsOf (
              types.submodule {
                freeformType = (pkgs.formats.json { }).type;
                options = {
                  name = nullable types.str "What people call it; its id when null.";
                  enabled = mkOption {
                    type = types.bool;
                    default = false;
                    description = "Whether its workspaces may run code.";
                  };
                  profile = nullable types.str "Its own profile; the deployment's default when null.";
                  network_policy = nullable (pkgs.formats.json { }).type ''
                    Its network policy, as in {file}`docs/operating/network-policy.md`; when null it is not declared and
                    operators change it.
                  '';
                };
              }
            );
          };
          workspaces = mkOption {
            default = { };
            example = lib.literalExpression ''{ docs = { organization = "acme"; enabled = true; }; }'';
            description = "Workspaces that are declared, of organizations that are declared too.";
            type = types.attrsOf (
              types.submodule {
                freeformType = (pkgs.formats.json { }).type;
                options = {
                  organization = mkOption {
                    type = types.str;
                    description = "Whose it is; never changes.";
                  };
                  name = nullable types.str "What people call it; its id when null.";
                  enabled = mkOption {
                    type = types.bool;
                    default = false;
                    description = "Whether its members may run code.";
                  };
                  quotas = {
                    max_concurrent = nullable types.ints.unsigned "Live sandboxes at once.";
                    max_resource_class = nullable (types.enum [
                      "SMALL"
                      "MEDIUM"
                      "LARGE"
                    ]) "The largest resource class.";
                    max_job_seconds = nullable types.ints.unsigned "The longest single job, in seconds.";
                    max_artifact_bytes_per_day = nullable types.ints.unsigned "Bytes of collected files per UTC day.";
                    max_jobs_per_hour = nullable types.ints.unsigned "New sandboxes per rolling hour.";
                  };
                };
              }
            );
          };
          log = {
            level = nullable types.str "What is logged, such as `info`.";
            format = nullable (types.enum [
              "text"
              "json"
            ]) "`text` goes to the journal with its fields.";
          };
        };
      };
    };

    images = mkOption {
      type = types.attrsOf types.package;
      default = { };
      example = lib.literalExpression "{ base = pkgs.hotcellPackages.image-base.tar; }";
      description = "Images that are imported before the service starts, by name: tars of root file systems.";
    };

    storeKeyFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/run/secrets/hotcell-store-key";
      description = ''
        The key that secrets in the store are sealed with: 64 hexadecimal digits. It is handed over as a credential
        of the unit. When null the daemon makes one in its state directory at its first start.
      '';
    };

    operatorTokenFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/run/secrets/hotcell-operator-token";
      description = "The token of the operator's API, of 20 characters or more; made at the first start when null.";
    };

    lockConfiguration = mkOption {
      type = types.bool;
      default = false;
      description = "Whether every change of a profile or a setting over the API is refused (`config_locked`).";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the port of {option}`services.hotcell.settings.listen` is opened.";
    };

    runtimes = {
      embedded.enable = mkOption {
        type = types.bool;
        default = cfg.settings.runtime.kind == "embedded";
        defaultText = lib.literalExpression ''config.services.hotcell.settings.runtime.kind == "embedded"'';
        description = "Whether gVisor and what the embedded runtime needs is there.";
      };
      docker.enable = mkOption {
        type = types.bool;
        default = cfg.settings.runtime.kind == "docker";
        defaultText = lib.literalExpression ''config.services.hotcell.settings.runtime.kind == "docker"'';
        description = "Whether Docker runs on this host for hotcell, with gVisor as one of its runtimes.";
      };
      podman.enable = mkOption {
        type = types.bool;
        default = cfg.settings.runtime.kind == "podman";
        defaultText = lib.literalExpression ''config.services.hotcell.settings.runtime.kind == "podman"'';
        description = "Whether Podman runs on this host for hotcell.";
      };
    };
  };

  config = mkIf cfg.enable {
    assertions = [
      {
        assertion = isOutsideStore cfg.storeKeyFile;
        message = "services.hotcell.storeKeyFile must be an absolute path outside ${builtins.storeDir}, where everybody could read it. Write it as a string, not as a path.";
      }
      {
        assertion = isOutsideStore cfg.operatorTokenFile;
        message = "services.hotcell.operatorTokenFile must be an absolute path outside ${builtins.storeDir}, where everybody could read it. Write it as a string, not as a path.";
      }
      {
        assertion = lib.elem cfg.settings.runtime.kind enabled;
        message = "services.hotcell.settings.runtime.kind is ${cfg.settings.runtime.kind}, but services.hotcell.runtimes.${cfg.settings.runtime.kind}.enable is false.";
      }
      {
        assertion = cfg.openFirewall -> !isLoopback;
        message = "services.hotcell.openFirewall is of no use while settings.listen is ${cfg.settings.listen}, which only this host reaches.";
      }
      {
        assertion =
          cfg.settings.runtime.kind == "embedded"
          -> !(lib.hasPrefix "/run/" (toString cfg.settings.state_dir));
        message = "services.hotcell.settings.state_dir must outlive a reboot.";
      }
    ]
    ++ lib.mapAttrsToList (id: workspace: {
      assertion = cfg.settings.organizations ? ${workspace.organization};
      message = "services.hotcell.settings.workspaces.${id}.organization is ${workspace.organization}, which services.hotcell.settings.organizations does not declare.";
    }) cfg.settings.workspaces;

    services.hotcell.settings = {
      agent_binary = lib.mkDefault "${cfg.agentPackage}/bin/hotcell-agent";
      # The unit hands them over; here they are for `hotcell check-config`.
      store_key_file = cfg.storeKeyFile;
      operator_token_file = cfg.operatorTokenFile;
    };

    environment.etc."hotcell/hotcell.toml".source = configFile;
    environment.systemPackages = [ cfg.package ];

    boot.kernelModules = lib.optionals cfg.runtimes.embedded.enable [
      "loop"
      "nf_tables"
    ];
    # The daemon itself changes no setting of the host.
    boot.kernel.sysctl = mkIf hasNetwork (lib.mapAttrs (_: one: lib.mkDefault one.value) unit.sysctl);

    networking.firewall.allowedTCPPorts = mkIf cfg.openFirewall [
      (lib.toInt (lib.last (lib.splitString ":" cfg.settings.listen)))
    ];

    virtualisation.docker = mkIf cfg.runtimes.docker.enable {
      enable = true;
      daemon.settings.runtimes.runsc.path = "${pkgs.gvisor}/bin/runsc";
    };
    virtualisation.podman.enable = mkIf cfg.runtimes.podman.enable true;

    systemd.services.hotcell = {
      inherit (unit)
        description
        wants
        startLimitIntervalSec
        startLimitBurst
        ;
      after =
        unit.after
        ++ lib.optional cfg.runtimes.docker.enable "docker.service"
        ++ lib.optional cfg.runtimes.podman.enable "podman.socket";
      wantedBy = [ "multi-user.target" ];
      # On purpose: a restart ends no sandbox, the new daemon adopts them. In place, so that it is short.
      restartIfChanged = true;
      stopIfChanged = false;
      restartTriggers = [ configFile ];
      path = [
        pkgs.util-linux
        pkgs.e2fsprogs
      ]
      ++ lib.optionals cfg.runtimes.embedded.enable [
        pkgs.gvisor
        pkgs.runc
      ];
      environment = lib.optionalAttrs cfg.lockConfiguration { HOTCELL_CONFIG_LOCKED = "true"; };
      serviceConfig =
        lib.listToAttrs (
          map (line: lib.nameValuePair line.key (placeAll line.value)) (
            lib.filter (line: line ? key) unit.service
          )
        )
        // {
          CapabilityBoundingSet = lib.concatMapStringsSep " " (one: one.name) unit.capabilities;
          LoadCredential = map (one: "${one.name}:${credentialFiles.${one.name}}") credentials;
          Environment = map (one: "${one.variable}=%d/${one.name}") credentials;
        }
        // lib.optionalAttrs (cfg.settings.state_dir != null) {
          ReadWritePaths = [ cfg.settings.state_dir ];
        };
    };

    systemd.services.hotcell-images = mkIf (cfg.images != { }) {
      description = "Images of hotcell's sandboxes";
      before = [ "hotcell.service" ];
      wantedBy = [ "hotcell.service" ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        StateDirectory = "hotcell";
        StateDirectoryMode = "0700";
        UMask = "0077";
        # It unpacks files with their owners, and does nothing else.
        CapabilityBoundingSet = "CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID";
        IPAddressDeny = "any";
        LockPersonality = true;
        MemoryDenyWriteExecute = true;
        NoNewPrivileges = true;
        PrivateDevices = true;
        PrivateNetwork = true;
        PrivateTmp = true;
        ProcSubset = "pid";
        ProtectClock = true;
        ProtectControlGroups = true;
        ProtectHome = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        ProtectSystem = "strict";
        RestrictAddressFamilies = "none";
        RestrictNamespaces = true;
        RestrictRealtime = true;
        SystemCallArchitectures = "native";
        SystemCallErrorNumber = "EPERM";
        SystemCallFilter = [
          "@system-service"
          "~@resources"
        ];
        ExecStart = lib.mapAttrsToList (
          name: image:
          "${lib.getExe cfg.package} image import ${image} --name ${name} --config /etc/hotcell/hotcell.toml"
        ) cfg.images;
      };
    };
  };

  meta.maintainers = [ ];
}
