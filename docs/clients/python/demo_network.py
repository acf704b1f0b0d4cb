#!/usr/bin/env python3
"""The demo's second chat, through the public API: what a network policy lets through, and what not.

`cargo xtask demo` starts a filtered appliance on an internet of two pages and runs this against it.
"""

import contextlib
import os

import demo
import hotcell
from demo import CHAT, ORGANIZATION, USER, WORKSPACE, check

ALLOWED, DENIED, DENIED_ADDRESS = "allowed.example.org", "denied.example.org", "203.0.113.20"
POLICY = {"defaultAction": "deny", "egress": [{"action": "allow", "target": ALLOWED}]}

FETCH = """python3 - <<'PY'
import urllib.request
try:
    print(urllib.request.urlopen("http://%s/", timeout=5).read().decode().strip())
except OSError as error:
    print("no connection:", getattr(error, "reason", error))
    raise SystemExit(1)
PY"""


def switch_on(url, token):
    """A switched-on workspace with a policy."""
    admin = hotcell.Admin(url, token)
    admin.call("PUT", f"/v1/admin/organizations/{ORGANIZATION}", {"name": "Demo", "enabled": True})
    admin.call(
        "PUT",
        f"/v1/admin/workspaces/{WORKSPACE}",
        {"organization": ORGANIZATION, "name": "Demo", "enabled": True},
    )
    admin.call("PUT", "/v1/admin/deployment", {"enabled": True})
    admin.call("PUT", f"/v1/admin/organizations/{ORGANIZATION}/network-policy", POLICY)
    credential = admin.call("POST", f"/v1/admin/organizations/{ORGANIZATION}/credentials", {})
    return admin, hotcell.Client(url, credential["key"], credential["secret"], WORKSPACE)


def fetch(chat, host):
    """Loads a page in the sandbox; shows what it printed and what hotcell noted."""
    result = chat.bash(FETCH % host)
    notes = [note for note in result["notes"] if "network policy" in note]
    print(f"http://{host}/: {result['stdout'].strip()}")
    for note in notes:
        print(f"  note: {note}")
    return result["exit_code"], result["stdout"], notes


def play(steps, admin, chat):
    """The chat."""
    with steps.step(f"the policy allows {ALLOWED} and nothing else"):
        code, page, notes = fetch(chat, ALLOWED)
        check(code == 0 and ALLOWED in page and not notes, "the allowed page was not reached")
    with steps.step("another name is not found, and its address is closed"):
        code, _, notes = fetch(chat, DENIED)
        check(code != 0, "the denied name was reached")
        check(any(DENIED in note for note in notes), f"nothing was noted: {notes}")
        code, _, _ = fetch(chat, DENIED_ADDRESS)
        check(code != 0, "the denied address was reached")
    with steps.step("what the operator sees"):
        events = admin.call("GET", "/v1/admin/egress-events?limit=100")["events"]
        shown = [event for event in events if event["kind"] in ("name_allowed", "name_denied", "packet_denied")]
        for event in shown[:6]:
            rule = "by default" if event.get("rule") is None else f"by rule {event['rule']}"
            print(f"{event['kind']:14}{event.get('name') or event.get('address')}  {rule}")
        kinds = {event["kind"] for event in shown}
        check({"name_allowed", "name_denied"} <= kinds, f"events are missing: {kinds}")
    with steps.step("the same page again: it was the policy, not the network"):
        code, page, _ = fetch(chat, ALLOWED)
        check(code == 0 and ALLOWED in page, "the allowed page was not reached again")


def main():
    steps = demo.Steps()
    with steps.step("the operator switches it on, with a network policy"):
        admin, client = switch_on(os.environ["HOTCELL_URL"], os.environ["HOTCELL_ADMIN_TOKEN"])
    chat = client.chat(CHAT, USER)
    try:
        play(steps, admin, chat)
    finally:
        with contextlib.suppress(Exception):
            chat.end()
    steps.table()


if __name__ == "__main__":
    main()
