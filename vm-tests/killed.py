# kill -9 of the daemon: systemd starts it again, and it adopts the sandboxes that live.
machine.start()
serves()
backend = Backend()
backend.says("export MARK=kept; echo here > /workspace/file; (sleep 100000 > /dev/null 2>&1 &)")
before = sandbox_processes()
lease = backend.bash("true")["lease"]
assert before
machine.succeed(f"kill -9 {main_pid()}")
machine.wait_until_succeeds("test $(systemctl show -P NRestarts hotcell.service) -ge 1", timeout=60)
serves()
assert backend.says("echo $MARK $(cat /workspace/file)") == "kept here"
assert backend.bash("true")["lease"] == lease
assert set(before) <= set(sandbox_processes()), "processes of the sandbox are gone"
assert backend.bash("exec 3<>/dev/tcp/169.254.169.254/80")["exit_code"] != 0
