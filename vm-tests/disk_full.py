# A full disk: what needs space is refused with its name, what is there can be read, and room helps at once.
machine.start()
serves()
backend = Backend()
backend.says("echo before > /mnt/user-data/note")
# What a volume has not yet put onto the disk is lost when that is full, as by a power cut.
machine.succeed("sync")
upload = "/v1/workspaces/w1/chats/c1/uploads/big?user=u1&role=editor"
machine.succeed("fallocate -l $(($(stat -f -c '%a * %S' /var/lib/hotcell) - (1 << 20))) /var/lib/hotcell/filler")
machine.execute("dd if=/dev/zero of=/var/lib/hotcell/filler2 bs=4k 2>/dev/null; sync")
status, problem = backend.call("PUT", upload, b"x" * 65_536)
assert status >= 500 and problem["code"] == "disk_full", (status, problem)
assert machine.succeed(f"curl -sf {URL}/healthz").strip()
assert backend.call("GET", "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor")[0] == 200
# A volume that has no room on the host either, and is told so.
body = {"user": {"id": "u1", "role": "editor"}, "command": "head -c 9000000 /dev/zero > /mnt/user-data/more"}
backend.call("POST", "/v1/workspaces/w1/chats/c1/bash", json.dumps(body).encode())
machine.execute("sync")
machine.succeed("rm /var/lib/hotcell/filler /var/lib/hotcell/filler2")
serves()
assert backend.call("PUT", upload, b"x" * 65_536)[0] in (200, 201)
with subtest("a volume that met the full disk is whole again, by what the operator's guide says"):
    # Until then it may be read-only, or not even readable.
    assert backend.call("DELETE", "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor")[0] == 200
    machine.wait_until_succeeds("! hotcell leases --json | grep -q ls_", timeout=60)
    machine.succeed("systemctl restart hotcell.service")
    serves()
    assert backend.says("cat /mnt/user-data/note") == "before"
    assert backend.says("echo after > /mnt/user-data/note; cat /mnt/user-data/note") == "after"
