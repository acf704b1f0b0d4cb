# A sandbox reaches what its organization's policy allows on another host, and nothing else there.
# Guests: machine, peer. They are neighbours on eth1; the peer is the internet.
start_all()
OPEN, CLOSED = "203.0.113.2", "203.0.113.3"
machine.succeed("ip link set eth1 up", "ip addr add 203.0.113.1/24 dev eth1", "sysctl -w net.ipv4.ip_forward=1")
peer.succeed("ip link set eth1 up", f"ip addr add {OPEN}/24 dev eth1", f"ip addr add {CLOSED}/24 dev eth1")


def listen(host: Any, words: str) -> None:
    """Starts the service with more in its environment."""
    host.succeed(
        "mkdir -p /run/systemd/system/hotcell.service.d",
        f"printf '[Service]\\n{words}\\n' > /run/systemd/system/hotcell.service.d/test.conf",
        "systemctl daemon-reload",
        "systemctl restart hotcell.service",
    )


# What the peer serves is hotcell, on all its addresses; it answers names with the open one.
listen(peer, "Environment=HOTCELL_LISTEN=0.0.0.0:80")
peer.wait_until_succeeds("curl -sf -o /dev/null http://127.0.0.1/healthz", timeout=300)
peer.succeed(
    "systemctl stop systemd-resolved.service || true",
    f"systemd-run -q --unit=names dnsmasq -k -u root --no-resolv --no-hosts --listen-address={OPEN} --bind-interfaces"
    f" --address=/open.example/{OPEN} --address=/closed.example/{CLOSED}",
)
machine.wait_until_succeeds(f"curl -sf -o /dev/null http://{CLOSED}/healthz", timeout=120)

machine.succeed(
    "cp --no-preserve=mode /etc/hotcell/hotcell.toml /run/hotcell-test.toml",
    "! grep -q '^.runtime' /run/hotcell-test.toml || sed -i '/^.runtime.$/,/^$/d' /run/hotcell-test.toml",
    f"printf '\\n[runtime]\\nnetwork = \"filtered\"\\ndns_upstreams = [\"{OPEN}\"]\\n' >> /run/hotcell-test.toml",
    "hotcell check-config --offline /run/hotcell-test.toml >&2",
)
program = machine.succeed("command -v hotcell").strip()
listen(machine, f"ExecStart=\\nExecStart={program} serve --config /run/hotcell-test.toml")
serves()
backend = Backend()


def policy(document: dict[str, Any]) -> None:
    body = shlex.quote(json.dumps(document))
    machine.succeed(
        "curl -sf --unix-socket /run/hotcell/admin.sock -X PUT -H 'Content-Type: application/json' "
        f"--data {body} http://h/v1/admin/organizations/acme/network-policy"
    )


def starts(chat: str) -> None:
    """Waits for its sandbox: an emulated host may be slower than the daemon waits for a filter."""
    body = json.dumps({"user": {"id": "u1", "role": "editor"}, "command": "true"}).encode()
    retry(lambda _: backend.call("POST", f"/v1/workspaces/w1/chats/{chat}/bash", body)[0] == 200, 900)


def reaches(host: str, chat: str) -> bool:
    ask = f"exec 3<>/dev/tcp/{host}/80 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3"
    result = backend.post(chat, "bash", {"command": f"bash -c {shlex.quote(ask)}", "timeout_ms": 40000})
    return result["exit_code"] == 0 and "200" in result["stdout"]


policy({"defaultAction": "deny", "egress": [{"action": "allow", "target": "open.example"}]})
starts("c1")
with subtest("the allowed name is reached, and the other one has no address"):
    assert reaches("open.example", "c1")
    assert not reaches("closed.example", "c1")
with subtest("what no rule names is not reached by its address either"):
    assert not reaches(CLOSED, "c1")
    assert not reaches("203.0.113.1", "c1")
with subtest("what was learnt is open, and denied by the next policy's sandbox"):
    assert reaches(OPEN, "c1")
    policy({"defaultAction": "allow", "egress": [{"action": "deny", "target": OPEN}]})
    assert reaches(OPEN, "c1")
    starts("c2")
    assert not reaches(OPEN, "c2")
    assert reaches(CLOSED, "c2")
with subtest("what filters did is told"):
    events = machine.succeed("curl -sf --unix-socket /run/hotcell/admin.sock http://h/v1/admin/egress-events")
    kinds = {event["kind"] for event in json.loads(events)["events"]}
    assert {"name_allowed", "name_denied"} <= kinds, kinds
with subtest("a killed daemon opens nothing"):
    machine.succeed(f"kill -9 {main_pid()}")
    serves()
    assert not reaches(OPEN, "c2")
    assert not reaches(CLOSED, "c1")
