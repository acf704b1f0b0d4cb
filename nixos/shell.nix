# A shell in which `cargo xtask demo` and `cargo xtask test` work: they find here what they would install elsewhere.
{ pkgs }:
let
  ours = pkgs.hotcellPackages;
in
pkgs.mkShell {
  packages = [
    pkgs.cargo
    pkgs.clippy
    pkgs.crun
    pkgs.deadnix
    pkgs.e2fsprogs
    pkgs.gvisor
    pkgs.iproute2
    pkgs.libmnl
    pkgs.libnftnl
    pkgs.mmdebstrap
    pkgs.nftables
    pkgs.nixfmt
    pkgs.pkg-config
    pkgs.runc
    pkgs.rustc
    pkgs.rustfmt
    pkgs.util-linux
    (pkgs.python3.withPackages (packages: [
      packages.openpyxl
      packages.pillow
      packages.pip
      packages.python-docx
    ]))
  ];
  env = {
    HOTCELL_IMAGE_BASE_TAR = ours.image-base.tar;
    HOTCELL_STATIC_AGENT = "${ours.hotcell-agent}/bin/hotcell-agent";
  };
}
