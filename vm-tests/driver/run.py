"""run.py GUEST PAYLOAD NAME…: runs tests of this directory on Debian guests under QEMU.

GUEST is what guest.sh made. PAYLOAD holds hotcell, hotcell-agent and image.tar. Each test gets a fresh guest on
which hotcell was installed as the operator guide says: binaries, `hotcell install-unit`, an image. Exits with 1 when
a test failed.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

from machine import Machine, retry

TESTS = pathlib.Path(__file__).resolve().parent.parent
# The emulated guest is slow, and slower beside other work.
SLOWNESS = float(os.environ.get("HOTCELL_VM_SLOWNESS", "2"))

INSTALL = """
install -m 755 /opt/hotcell/hotcell /opt/hotcell/hotcell-agent /usr/local/bin/
hotcell install-unit >&2
hotcell image import /opt/hotcell/image.tar --name base >&2
echo '/dev/vdb /opt/hotcell ext4 ro,nofail 0 0' >> /etc/fstab
systemctl daemon-reload
systemctl enable -q hotcell.service
systemctl start --no-block hotcell.service
"""


class Host(Machine):
    """A Debian host with hotcell installed."""

    installed = False

    def start(self, allow_reboot=True, loadvm=None):
        is_up = self.is_up()
        super().start(allow_reboot, loadvm)
        if not is_up and not self.installed:
            self.succeed("modprobe virtio_blk; mount -o ro /dev/vdb /opt/hotcell", INSTALL, timeout=600)
            self.installed = True


@contextlib.contextmanager
def subtest(name):
    print(f"subtest: {name}", file=sys.stderr, flush=True)
    yield


def payload_disk(payload, directory):
    image = os.path.join(directory, "payload.img")
    size = sum(f.stat().st_size for f in pathlib.Path(payload).iterdir())
    subprocess.run(["truncate", "-s", str(size * 5 // 4 + (16 << 20)), image], check=True)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-F", "-d", payload, image], check=True)
    return image


def run(name, guest, payload):
    directory = tempfile.mkdtemp(prefix=f"hotcell-vm-{name}-")
    begin = time.monotonic()
    drive = f"file={payload},if=none,id=d1,format=raw,readonly=on"
    machine = Host(
        name,
        image=f"{guest}/root.img",
        kernel=f"{guest}/vmlinuz",
        initrd=f"{guest}/initrd",
        cmdline="apparmor=0",
        state_dir=directory,
        slow=SLOWNESS,
        memory=2048,
        extra_args=["-drive", drive, "-device", "virtio-blk-pci,drive=d1"],
    )
    names = {"machine": machine, "machines": [machine], "subtest": subtest, "retry": retry}
    names |= {"t": unittest.TestCase(), "start_all": machine.start, "__name__": name}
    try:
        for path in (TESTS / "lib.py", TESTS / f"{name}.py"):
            exec(compile(path.read_text(), str(path), "exec"), names)
        return True
    except BaseException as error:
        traceback.print_exc()
        if machine.is_up():
            with contextlib.suppress(Exception):
                _, log = machine.execute(
                    "systemctl status hotcell --no-pager; journalctl -b -u hotcell -n 60 --no-pager", timeout=60
                )
                print(log, file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    finally:
        machine.crash()
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)


def main():
    guest, payload, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        disk = payload_disk(payload, directory)
        results = {name: run(name, guest, disk) for name in names}
    for name, passed in results.items():
        print(f"{name:<16}{'passed' if passed else 'FAILED'}")
    sys.exit(not all(results.values()))


if __name__ == "__main__":
    main()
