# What happened can be found in the journal by what it happened to.
machine.start()
serves()
backend = Backend()
lease = backend.bash("true")["lease"]
name = lease["id"] if isinstance(lease, dict) else lease
machine.wait_until_succeeds(f"journalctl -u hotcell.service -o cat HOTCELL_LEASE={name} | grep -q .", timeout=30)
entry = json.loads(machine.succeed("journalctl -u hotcell.service -o json -n 1").splitlines()[-1])
assert entry["SYSLOG_IDENTIFIER"] == "hotcell" or entry["_COMM"] == "hotcell", entry
machine.fail(f"journalctl -u hotcell.service -o cat --no-pager | grep -F {backend.secret}")
