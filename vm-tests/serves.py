# A host that has just booted serves, with nothing done by hand.
machine.start()
serves()
assert machine.succeed(f"curl -sf {URL}/healthz").strip()
machine.succeed("hotcell status >&2", "hotcell check-config >&2")
with subtest("only root gets to the operator's socket and the state"):
    assert machine.succeed("stat -c %a /run/hotcell/admin.sock").strip() == "600"
    assert machine.succeed("stat -c %a /run/hotcell /var/lib/hotcell").split() == ["700", "700"]
with subtest("nothing runs before an operator says so"):
    assert hotcell("deployment show")["enabled"] is False
with subtest("it has no capability that its unit does not name"):
    bits = int(machine.succeed(f"awk '/CapBnd/ {{print $2}}' /proc/{main_pid()}/status"), 16)
    # Modules, raw I/O, accounting, reboot, priorities, resources, clock, kernel log, BPF.
    for number in (16, 17, 20, 22, 23, 24, 25, 34, 39):
        assert not bits >> number & 1, f"capability {number}"
with subtest("nothing is missing for gVisor with its own network stack"):
    assert "own network stack" in machine.succeed("hotcell status")
