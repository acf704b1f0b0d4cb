# After a reboot sandboxes are gone and said to be; volumes, outputs and settings are there.
machine.start()
serves()
backend = Backend()
backend.says("echo mine > /mnt/user-data/note; echo scratch > /workspace/note")
lease = backend.bash("true")["lease"]
machine.reboot()
serves()
assert backend.says("cat /mnt/user-data/note") == "mine"
assert backend.bash("true")["lease"] != lease
