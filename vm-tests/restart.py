# An upgrade is a restart of the service: sandboxes go on, and a stopped service leaves them alone too.
machine.start()
serves()
backend = Backend()
backend.says("export MARK=kept; (sleep 100000 > /dev/null 2>&1 &)")
before = sandbox_processes()
for command in ("restart", "stop", "start"):
    machine.succeed(f"systemctl {command} hotcell.service")
    assert set(before) <= set(sandbox_processes()), f"{command} ended processes of the sandbox"
serves()
assert backend.says("echo $MARK") == "kept"
