# A store that a daemon of the previous schema has written is taken over whole, and kept as it was beside it.
machine.start()
serves()
machine.succeed("systemctl stop hotcell.service")
machine.copy_from_host(f"{TESTS}/old/schema-1", "/root/old")
machine.succeed(
    "find /var/lib/hotcell -mindepth 1 -maxdepth 1 ! -name images ! -name operator.token -exec rm -rf {} +",
    "cp -r /root/old/store.redb /root/old/volumes /root/old/outputs /var/lib/hotcell/",
    "install -m 600 /root/old/store.key /var/lib/hotcell/store.key",
    "chmod -R go-rwx /var/lib/hotcell/store.redb /var/lib/hotcell/outputs",
    "chown -R 1000:1000 /var/lib/hotcell/volumes/old-w1/users/u1",
    "mkdir -p /run/systemd/system/hotcell.service.d",
    "printf '[Service]\\nEnvironment=HOTCELL_STORE_KEY_FILE=/var/lib/hotcell/store.key\\n'"
    " > /run/systemd/system/hotcell.service.d/test.conf",
    "systemctl daemon-reload",
    "systemctl start hotcell.service",
)
serves()
with subtest("the file as it was is beside it"):
    machine.succeed("cmp /var/lib/hotcell/store.redb.before-schema-1-to-* /root/old/store.redb")
backend = Backend()
backend.workspace = "old-w1"
backend.use(json.loads(machine.succeed("cat /root/old/credential.json")))
with subtest("the credential, the member's files and the collected ones are good"):
    assert backend.says("cat /mnt/user-data/note") == "precious"
    chat = "/v1/workspaces/old-w1/chats/shell/outputs"
    status, listed = backend.call("GET", f"{chat}?user=u1&role=editor")
    assert status == 200 and [one["name"] for one in listed["outputs"]] == ["out.txt"], (status, listed)
    status, content = backend.call("GET", f"{listed['outputs'][0]['content_url']}?user=u1&role=editor")
    assert (status, content) in ((200, 1), (200, b"1\n")), (status, content)
with subtest("so is the network policy"):
    saved = machine.succeed(
        "curl -sf --unix-socket /run/hotcell/admin.sock http://h/v1/admin/organizations/old-acme/network-policy"
    )
    assert "*.example.com" in json.loads(saved)["text"], saved
with subtest("once is enough"):
    machine.succeed("systemctl restart hotcell.service")
    serves()
    assert machine.succeed("ls /var/lib/hotcell | grep -c before-schema").strip() == "1"
    assert backend.says("cat /mnt/user-data/note") == "precious"
