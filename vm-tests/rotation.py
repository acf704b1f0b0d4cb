# The backend's credential is rotated without a call lost: two secrets are good until it is finished.
machine.start()
serves()
backend = Backend()
old = {"key": backend.key, "secret": backend.secret}
target = "/v1/workspaces/w1/chats/c1/lease?user=u1&role=editor"


def is_known() -> bool:
    return backend.call("GET", target)[0] != 401


assert is_known()
new = {"key": old["key"]} | hotcell(f"credential rotate {old['key']} --organization acme")
assert new["secret"] != old["secret"]
for credential in (old, new):
    backend.use(credential)
    assert is_known()
hotcell(f"credential finish-rotation {old['key']} --organization acme")
assert is_known()
backend.use(old)
assert not is_known()
machine.succeed("systemctl restart hotcell.service")
serves()
assert not is_known()
backend.use(new)
assert is_known()
