# By default nothing of it can be reached from elsewhere, and the host routes for nobody.
machine.start()
serves()
listening = [line.split()[3] for line in machine.succeed("ss -Htlnp | grep hotcell").splitlines()]
assert listening and all(one.startswith("127.0.0.1:") for one in listening), listening
assert machine.succeed("sysctl -n net.ipv4.ip_forward").strip() == "0"
backend = Backend()
backend.says("true")
with subtest("a sandbox changes nothing of the host's network"):
    links = machine.succeed("ip -o link | cut -d: -f2").split()
    assert not any(name.startswith("hc-") for name in links), links
    for address in ("127.0.0.1", "10.0.2.15", "169.254.169.254", "100.64.0.1"):
        assert backend.bash(f"exec 3<>/dev/tcp/{address}/8470")["exit_code"] != 0, address
