#!/bin/bash
# guest.sh DIR MIRROR: the guest that stands for a plain host: root.img, vmlinuz, initrd. Once; needs root and mmdebstrap.
#
# A guest has what a Debian host has that runs hotcell, a kernel, and a root shell on a virtio port for the driver.
# hotcell itself comes on a second disk, so that the guest stays as it is when hotcell changes.
set -euo pipefail
out=$1
root=$out/root
suite=trixie
mkdir -p "$out"
mirror=$2
packages=systemd-sysv,dbus,udev,kmod,linux-image-cloud-amd64,runsc,runc,e2fsprogs,util-linux,mount,iproute2,nftables,curl,ca-certificates,procps,busybox-static,dnsmasq-base,podman
if [ ! -e "$root/sbin/init" ]; then
  rm -rf "$root"
  mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
    --aptopt='Acquire::Retries "5"' --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt=force-unsafe-io "$suite" "$root" "deb $mirror $suite main"
fi
etc=$root/etc
echo machine > "$etc/hostname"
printf '127.0.0.1 localhost machine\n' > "$etc/hosts"
echo '/dev/vda / ext4 defaults,noatime 0 0' > "$etc/fstab"
: > "$etc/machine-id"
mkdir -p "$etc"/systemd/{system,journald.conf.d,system.conf.d,network} "$etc/udev/rules.d" "$root/opt/hotcell"
printf '[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n' > "$etc/systemd/journald.conf.d/test.conf"
printf '[Manager]\nDefaultTimeoutStartSec=300s\nDefaultDeviceTimeoutSec=300s\n' > "$etc/systemd/system.conf.d/test.conf"
printf '[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\nIPv6AcceptRA=no\n' > "$etc/systemd/network/eth0.network"
mkdir -p "$etc/systemd/system/multi-user.target.wants"
ln -sf /usr/lib/systemd/system/systemd-networkd.service "$etc/systemd/system/multi-user.target.wants/systemd-networkd.service"
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
  dpkg-db-backup.timer systemd-networkd-wait-online.service getty@tty1.service serial-getty@ttyS0.service \
  systemd-tpm2-setup.service systemd-tpm2-setup-early.service podman-restart.service \
  podman-auto-update.timer podman-clean-transient.service; do
  ln -sf /dev/null "$etc/systemd/system/$unit"
done
# The engine is there, and does nothing until a test starts its socket.
rm -f "$etc"/systemd/system/*.wants/podman*
cat > "$etc/systemd/system/backdoor.service" <<'U'
[Unit]
Description=root shell for the test driver
DefaultDependencies=no
After=systemd-remount-fs.service systemd-udevd.service
ConditionPathExists=/dev/virtio-ports/backdoor
Conflicts=shutdown.target
Before=shutdown.target
[Service]
Environment=HOME=/root USER=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
WorkingDirectory=/
ExecStart=/usr/local/sbin/backdoor
StandardInput=null
KillSignal=SIGHUP
Restart=always
RestartSec=1
TimeoutStopSec=2
U
cat > "$root/usr/local/sbin/backdoor" <<'U'
#!/bin/bash
exec 0<>/dev/virtio-ports/backdoor 1>&0   # a port can be opened only once
exec 2>/dev/console
echo "BACKDOOR-READY $(cat /proc/sys/kernel/random/boot_id)"
exec /bin/bash --norc
U
chmod 755 "$root/usr/local/sbin/backdoor"
echo 'SUBSYSTEM=="virtio-ports", ATTR{name}=="backdoor", TAG+="systemd", ENV{SYSTEMD_WANTS}+="backdoor.service"' > "$etc/udev/rules.d/99-backdoor.rules"
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
# An initrd with nothing but what the root disk needs.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,mnt,proc,dev,modules}
cp "$root/bin/busybox" "$work/bin/"
modules="virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk"
for module in $modules; do
  file=$(find "$root/usr/lib/modules" -name "$module.ko" -o -name "$module.ko.xz" | head -1)
  case "$file" in
    *.xz) xz -dc "$file" > "$work/modules/$module.ko" ;;
    ?*) cp "$file" "$work/modules/" ;;
  esac
done
cat > "$work/init" <<U
#!/bin/busybox sh
B=/bin/busybox
\$B mount -t devtmpfs d /dev
\$B mount -t proc p /proc
for m in $modules; do [ -e /modules/\$m.ko ] && \$B insmod /modules/\$m.ko; done
i=0
while [ ! -b /dev/vda ] && [ \$i -lt 100 ]; do \$B sleep 0.1; i=\$((i+1)); done
\$B mount -t ext4 -o rw,noatime /dev/vda /mnt || exec \$B sh
\$B mount -o move /dev /mnt/dev
\$B umount /proc
exec \$B switch_root /mnt /sbin/init
U
ln -s bin/busybox "$work/busybox"
chmod 755 "$work/init"
(cd "$work" && find . | "$root/bin/busybox" cpio -o -H newc 2>/dev/null) > "$out/initrd"
rm -f "$out/root.img.new"
truncate -s 3G "$out/root.img.new"
mke2fs -q -t ext4 -F -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$out/root.img.new"
mv "$out/root.img.new" "$out/root.img"
rm -rf "$root"
