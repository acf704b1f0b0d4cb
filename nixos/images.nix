# The images that sandboxes run, each three times over: as a layered image for container engines, as an unpacked
# root tree (`.tree`), and as the tar of that tree for `hotcell image import` (`.tar`).
{ pkgs }:
let
  inherit (pkgs) lib;

  python = pkgs.python3.withPackages (
    packages: with packages; [
      lxml
      matplotlib
      openpyxl
      pandas
      pillow
      pip
      python-docx
      python-pptx
      xlsxwriter
    ]
  );

  base = [
    pkgs.bashInteractive
    pkgs.cacert
    pkgs.coreutils
    pkgs.findutils
    pkgs.gawk
    pkgs.gnugrep
    pkgs.gnused
    pkgs.gnutar
    pkgs.gzip
    pkgs.procps
    python
  ];

  universal = base ++ [
    pkgs.cargo
    pkgs.curl
    pkgs.gcc
    pkgs.git
    pkgs.gnumake
    pkgs.go
    pkgs.jdk
    pkgs.jq
    pkgs.libreoffice
    pkgs.nodejs
    pkgs.pandoc
    pkgs.perl
    pkgs.php
    pkgs.powershell
    pkgs.R
    pkgs.ruby
    pkgs.rustc
    pkgs.sqlite
    pkgs.unzip
    pkgs.zip
  ];

  mounts = [
    "workspace"
    "mnt/skills"
    "mnt/uploaded-files"
    "mnt/user-data"
    "mnt/workspace-data"
    ".hotcell"
  ];

  image =
    name: contents:
    let
      tree =
        pkgs.runCommand "hotcell-tree-${name}"
          {
            links = pkgs.buildEnv {
              name = "hotcell-links-${name}";
              paths = contents;
              pathsToLink = [
                "/bin"
                "/etc"
                "/lib"
                "/share"
              ];
              ignoreCollisions = true;
            };
            closure = pkgs.closureInfo { rootPaths = contents; };
          }
          ''
            mkdir -p $out/nix/store $out/usr $out/etc $out/tmp $out/proc $out/sys $out/dev
            while read -r path; do cp -a "$path" "$out$path"; done < "$closure/store-paths"
            cp -a "$links"/. $out/
            chmod -R u+w $out/etc $out/bin
            ln -s ../bin $out/usr/bin
            ln -sfn bash $out/bin/sh
            echo 'root:x:0:0::/:/bin/bash' > $out/etc/passwd
            echo 'root:x:0:' > $out/etc/group
            mkdir -p ${lib.concatMapStringsSep " " (path: "$out/${path}") mounts}
          '';
    in
    pkgs.dockerTools.buildLayeredImage {
      name = "hotcell-${name}";
      tag = "latest";
      inherit contents;
      extraCommands = "mkdir -p tmp ${lib.concatStringsSep " " mounts}";
      config = {
        User = "1000:1000";
        WorkingDir = "/workspace";
        Env = [
          "LANG=C.UTF-8"
          "SSL_CERT_FILE=${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt"
        ];
      };
      passthru = {
        inherit tree;
        tar = pkgs.runCommand "hotcell-${name}.tar" { } ''
          tar -C ${tree} --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner -cf $out .
        '';
      };
      meta = {
        description = "What hotcell sandboxes run (${name})";
        license = lib.licenses.asl20;
        platforms = lib.platforms.linux;
      };
    };
in
{
  image-base = image "base" base;
  image-universal = image "universal" universal;
}
