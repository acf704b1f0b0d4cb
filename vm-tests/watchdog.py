# A daemon that hangs is ended and started again, and its sandboxes go on.
machine.start()
serves()
# Shorter than it ships, so that the test ends soon.
machine.succeed(
    "mkdir -p /run/systemd/system/hotcell.service.d",
    "printf '[Service]\\nWatchdogSec=15s\\nTimeoutAbortSec=5s\\n' > /run/systemd/system/hotcell.service.d/test.conf",
    "systemctl daemon-reload",
    "systemctl restart hotcell.service",
)
serves()
backend = Backend()
backend.says("export MARK=kept")
before, hung = sandbox_processes(), main_pid()
machine.succeed(f"kill -STOP {hung}")
machine.wait_until_succeeds(f"test $(systemctl show -P MainPID hotcell.service) != {hung}", timeout=120)
serves()
assert restarts() >= 1
assert set(before) <= set(sandbox_processes())
assert backend.says("echo $MARK") == "kept"
