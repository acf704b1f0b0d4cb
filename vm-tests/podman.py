# A chat on Podman, under the unit as it ships: its files, its filter, and a restart that ends nothing.
machine.start()
serves()
machine.succeed("systemctl start podman.socket")
# The engine gets the image that hotcell has.
root = machine.succeed("ls -d /var/lib/hotcell/images/*/rootfs").split()[0]
image = machine.succeed(f"tar -C {root} -c . | podman import -q - hotcell-test").strip()
engine = ['kind = "podman"', f'image = "sha256:{image.removeprefix("sha256:")}"']
restart_on(engine)
serves()
backend = Backend()


def containers() -> list[str]:
    """Those of sandboxes that run."""
    return machine.succeed("podman ps -q --no-trunc --filter label=io.hotcell.lease | sort").split()


with subtest("a command, its files, and a finished file handed out"):
    assert backend.says("export MARK=kept; echo $((6 * 7))") == "42"
    assert backend.bash("exit 3")["exit_code"] == 3
    assert containers()
    target = "/v1/workspaces/w1/chats/c1/uploads/in.txt?user=u1&role=editor"
    status, _ = backend.call("PUT", target, b"3\n1\n2\n")
    assert status in (200, 201), status
    sort = "sort /mnt/uploaded-files/in.txt > /workspace/out.txt; cat /workspace/out.txt"
    assert backend.says(sort).split() == ["1", "2", "3"]
    outputs = backend.post("c1", "present_files", {"paths": ["/workspace/out.txt"]})["outputs"]
    status, content = backend.call("GET", f"{outputs[0]['content_url']}?user=u1&role=editor")
    assert (status, content) == (200, b"1\n2\n3\n"), (status, content)
with subtest("nothing of the unit was loosened, and nothing else was needed"):
    assert machine.succeed("systemctl show -P ProtectKernelTunables hotcell.service").strip() == "yes"
    assert machine.succeed("systemctl show -P ProtectSystem hotcell.service").strip() == "strict"
    machine.fail(f"nsenter --mount --target {main_pid()} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'")
with subtest("a restart of the service ends nothing"):
    before = containers()
    machine.succeed("systemctl restart hotcell.service")
    serves()
    assert backend.says("echo $MARK") == "kept"
    assert containers() == before
with subtest("a sandbox with a filter has it"):
    machine.succeed("sysctl -w net.ipv4.ip_forward=1")
    restart_on([*engine, 'network = "filtered"', 'dns_upstreams = ["127.0.0.1"]'])
    serves()
    policy({"defaultAction": "deny", "egress": [{"action": "allow", "target": "open.example"}]})
    for name in ("open.example", "closed.example"):
        assert backend.bash(f"exec 3<>/dev/tcp/{name}/80", "c2")["exit_code"] != 0
    events = machine.succeed("curl -sf --unix-socket /run/hotcell/admin.sock http://h/v1/admin/egress-events")
    seen = {(event["kind"], event.get("name")) for event in json.loads(events)["events"]}
    # The allowed one is asked for; nobody answers here.
    assert {("upstream_failed", "open.example"), ("name_denied", "closed.example")} <= seen, seen
    assert not {("name_denied", "open.example"), ("upstream_failed", "closed.example")} & seen, seen
