# The backup of the operator guide, restored onto a host that lost everything.
machine.start()
serves()
backend = Backend()
backend.says("echo precious > /mnt/user-data/note")
hotcell("deployment disable")
status, ended = backend.call("DELETE", "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor")
assert status in (200, 202, 204), (status, ended)
machine.wait_until_succeeds("! hotcell leases --json | grep -q ls_", timeout=60)
machine.succeed(
    "systemctl stop hotcell.service",
    "tar -C /var/lib/hotcell --sparse --exclude=./sandboxes --exclude=./templates --exclude=./images --exclude=./tmp -cf /root/backup.tar .",
    "mv /var/lib/hotcell/images /root/images",
    "find /var/lib/hotcell -mindepth 1 -delete",
    "tar -C /var/lib/hotcell -xpf /root/backup.tar",
    "mv /root/images /var/lib/hotcell/images",
    "systemctl start hotcell.service",
)
serves()
hotcell("deployment enable")
assert backend.says("cat /mnt/user-data/note") == "precious"
with subtest("without its key a store is left alone"):
    machine.succeed("systemctl stop hotcell.service", "install -m 600 /dev/null /root/other", "printf '%064d' 7 > /root/other")
    machine.fail("HOTCELL_STORE_KEY_FILE=/root/other timeout 60 hotcell serve")
    machine.succeed("systemctl start hotcell.service")
    serves()
    assert backend.says("cat /mnt/user-data/note") == "precious"
