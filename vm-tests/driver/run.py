"""run.py GUEST PAYLOAD NAME…: runs tests of this directory on Debian guests under QEMU.

GUEST is what guest.sh made. PAYLOAD holds hotcell, hotcell-agent and image.tar. First hotcell is installed on a guest
as the operator guide says: binaries, `hotcell install-unit`, an image. Each test then gets a guest of its own that
begins there, switched off. Exits with 1 when a test failed.
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
systemctl daemon-reload
systemctl enable -q hotcell.service
"""


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


def link(directory, number, of):
    """A wire between two guests: eth1 of each."""
    end = [os.path.join(directory, f"wire-{one}") for one in (number, 1 - number)]
    wire = f"dgram,id=n1,local.type=unix,local.path={end[0]},remote.type=unix,remote.path={end[1]}"
    card = f"virtio-net-pci,netdev=n1,mac=52:54:00:12:01:{number + 1:02x},romfile="
    return ["-netdev", wire, "-device", card] if of > 1 else []


def guests_of(text):
    """The names of the guests that a test wants: its second line may say so."""
    line = (text.splitlines()[1:2] or [""])[0]
    words = line.removeprefix("# Guests: ").split(".")[0] if line.startswith("# Guests: ") else "machine"
    return words.split(", ")


def host(name, guest, directory, image, image_format, extra_args=()):
    return Machine(
        name,
        image=image,
        image_format=image_format,
        kernel=f"{guest}/vmlinuz",
        initrd=f"{guest}/initrd",
        cmdline="apparmor=0",
        state_dir=directory,
        slow=SLOWNESS,
        memory=2048,
        extra_args=extra_args,
    )


def install(guest, payload, directory):
    """A disk on which hotcell is installed."""
    state = os.path.join(directory, "install")
    drive = f"file={payload_disk(payload, directory)},if=none,id=d1,format=raw,readonly=on"
    extra = ["-drive", drive, "-device", "virtio-blk-pci,drive=d1"]
    machine = host("install", guest, state, f"{guest}/root.img", "raw", extra)
    try:
        machine.start()
        machine.succeed("mount -o ro /dev/vdb /opt/hotcell", INSTALL, "umount /opt/hotcell", timeout=600)
        machine.shutdown(timeout=120)
    finally:
        machine.crash()
    return machine.disk


def run(name, guest, disk):
    directory = tempfile.mkdtemp(prefix=f"hotcell-vm-{name}-")
    begin = time.monotonic()
    wanted = guests_of((TESTS / f"{name}.py").read_text())
    machines = {}
    for number, one in enumerate(wanted):
        state = os.path.join(directory, one)
        wire = link(directory, number, len(wanted))
        machines[one] = host(one, guest, state, disk, "qcow2", wire)

    def start_all():
        for machine in machines.values():
            machine.start()

    names = machines | {"machines": list(machines.values()), "subtest": subtest, "retry": retry}
    names |= {"t": unittest.TestCase(), "start_all": start_all, "__name__": name, "TESTS": str(TESTS)}
    try:
        for path in (TESTS / "lib.py", TESTS / f"{name}.py"):
            exec(compile(path.read_text(), str(path), "exec"), names)
        return True
    except BaseException as error:
        traceback.print_exc()
        for machine in machines.values():
            if not machine.is_up():
                continue
            with contextlib.suppress(Exception):
                _, log = machine.execute(
                    "systemctl status hotcell --no-pager; journalctl -b -u hotcell -n 60 --no-pager; dmesg | tail -n 40",
                    timeout=60,
                )
                print(machine.name, log, file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    finally:
        for machine in machines.values():
            machine.crash()
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)


def main():
    guest, payload, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        disk = install(guest, payload, directory)
        results = {name: run(name, guest, disk) for name in names}
    for name, passed in results.items():
        print(f"{name:<16}{'passed' if passed else 'FAILED'}")
    sys.exit(not all(results.values()))


if __name__ == "__main__":
    main()
