# A chat in the guest: a command, its files, and a finished file handed out.
machine.start()
serves()
backend = Backend()
assert backend.says("echo $((6 * 7))") == "42"
assert backend.bash("exit 3")["exit_code"] == 3
status, _ = backend.call("PUT", "/v1/workspaces/w1/chats/c1/uploads/in.txt?user=u1&role=editor", b"3\n1\n2\n")
assert status in (200, 201), status
assert backend.says("sort /mnt/uploaded-files/in.txt > /workspace/out.txt; cat /workspace/out.txt").split() == ["1", "2", "3"]
outputs = backend.post("c1", "present_files", {"paths": ["/workspace/out.txt"]})["outputs"]
status, content = backend.call("GET", f"{outputs[0]['content_url']}?user=u1&role=editor")
assert (status, content if isinstance(content, bytes) else None) == (200, b"1\n2\n3\n"), (status, content)
with subtest("the sandbox is gVisor and sees nothing of the host"):
    assert "hotcell" not in backend.bash("ls / /proc/1/root 2>&1")["stdout"]
    assert backend.bash("exec 3<>/dev/tcp/169.254.169.254/80")["exit_code"] != 0
