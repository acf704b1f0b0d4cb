# A sandbox reaches what its organization's policy allows on another host, and nothing else there.
# Guests: machine, peer. They are neighbours on eth1; the peer is the internet.
start_all()
OPEN, CLOSED = "203.0.113.2", "203.0.113.3"
for host in machines:
    # Its driver comes a little later than the shell.
    host.wait_until_succeeds("ip link set eth1 up")
machine.succeed("ip addr add 203.0.113.1/24 dev eth1", "sysctl -w net.ipv4.ip_forward=1")
peer.succeed(f"ip addr add {OPEN}/24 dev eth1", f"ip addr add {CLOSED}/24 dev eth1")

# What the peer serves is hotcell, on all its addresses; it answers names with the open one.
restart_with(peer, "Environment=HOTCELL_LISTEN=0.0.0.0:80")
peer.wait_until_succeeds("curl -sf -o /dev/null http://127.0.0.1/healthz", timeout=300)
peer.succeed(
    "systemctl stop systemd-resolved.service || true",
    f"systemd-run -q --unit=names dnsmasq -k -u root --no-resolv --no-hosts --listen-address={OPEN} --bind-interfaces"
    f" --address=/open.example/{OPEN} --address=/closed.example/{CLOSED}",
)
machine.wait_until_succeeds(f"curl -sf -o /dev/null http://{CLOSED}/healthz", timeout=120)

restart_on(['network = "filtered"', f'dns_upstreams = ["{OPEN}"]'])
serves()
backend = Backend()


def starts(chat: str) -> None:
    """Waits for its sandbox: an emulated host may be slower than the daemon waits for a filter."""
    body = json.dumps({"user": {"id": "u1", "role": "editor"}, "command": "true"}).encode()
    retry(lambda _: backend.call("POST", f"/v1/workspaces/w1/chats/{chat}/bash", body)[0] == 200, 900)


def reaches(host: str, chat: str) -> bool:
    ask = f"exec 3<>/dev/tcp/{host}/80 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3"
    # Ended in there: what is denied is dropped, and no limit of the daemon's should be what counts.
    result = backend.bash(f"timeout -k 1 20 bash -c {shlex.quote(ask)}", chat)
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
