# A power cut in the middle of writes: nothing that was acknowledged is lost, and the store opens.
machine.start()
serves()
backend = Backend()
backend.says("true")
acknowledged: list[str] = []
for cut in range(2):
    # Writes go on in the guest while the power goes; what it had printed by then was acknowledged.
    machine.succeed(
        "systemd-run -q --unit=writer bash -c "
        "'i=0; while :; do i=$((i+1)); "
        f"hotcell organization put cut{cut}-$i --enable > /dev/null && echo cut{cut}-$i > /dev/kmsg; done'"
    )
    machine.wait_until_succeeds(f"dmesg | grep -q cut{cut}-5", timeout=120)
    printed = machine.succeed(f"dmesg | grep -o 'cut{cut}-[0-9]*'").split()
    machine.crash()
    acknowledged += printed
    machine.start()
    serves()
    listed = {one["id"] for one in hotcell("organization list")["organizations"]}
    missing = [name for name in acknowledged if name not in listed]
    assert not missing, f"acknowledged and lost: {missing}"
assert backend.says("echo works") == "works"
