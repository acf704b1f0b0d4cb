# What the tests share. Put before each of them, by NixOS's driver and by ours.
import base64
import hashlib
import hmac
import json
import secrets
import shlex
from typing import Any

URL = "http://127.0.0.1:8470"


def hotcell(words: str) -> Any:
    """What the operator's command answers."""
    answer = machine.succeed(f"hotcell {words}")
    return json.loads(answer) if answer.strip() else None


def serves(timeout: int = 300) -> None:
    """Waits until the service is up and its sandboxes can run."""
    machine.wait_for_unit("hotcell.service")
    machine.wait_until_succeeds(f"curl -sf -o /dev/null {URL}/readyz", timeout=timeout)


def restart_with(host: Any, words: str) -> None:
    """Restarts the service of a host with more lines in `[Service]`."""
    host.succeed(
        "mkdir -p /run/systemd/system/hotcell.service.d",
        f"printf '[Service]\\n{words}\\n' > /run/systemd/system/hotcell.service.d/test.conf",
        "systemctl daemon-reload",
        "systemctl restart hotcell.service",
    )


def restart_on(runtime: list[str]) -> None:
    """Restarts the service with its configuration but for the table `[runtime]`, which is then this."""
    machine.succeed(
        # What is not a setting stays, and so does every other table.
        "awk '/^\\[/ { skip = /^\\[runtime\\]/ } !skip' /etc/hotcell/hotcell.toml > /run/hotcell-test.toml",
        f"printf '%s\\n' '[runtime]' {shlex.join(runtime)} >> /run/hotcell-test.toml",
        "hotcell check-config --offline /run/hotcell-test.toml >&2",
    )
    program = machine.succeed("command -v hotcell").strip()
    restart_with(machine, f"ExecStart=\\nExecStart={program} serve --config /run/hotcell-test.toml")


class Backend:
    """A chat backend with a credential of its own."""

    def __init__(self, organization: str = "acme", workspace: str = "w1") -> None:
        self.organization, self.workspace = organization, workspace
        hotcell("deployment enable")
        hotcell(f"organization put {organization} --enable")
        hotcell(f"workspace put {workspace} --organization {organization} --enable")
        self.use(hotcell(f"credential create --organization {organization}"))

    def use(self, credential: dict[str, Any]) -> None:
        self.key, self.secret = credential["key"], credential["secret"]

    def call(self, method: str, target: str, data: bytes = b"", timeout: int = 300) -> tuple[int, Any]:
        """The status and what was answered: JSON where it is JSON, otherwise bytes."""
        digest = hashlib.sha256(data).hexdigest()
        timestamp = machine.succeed("date +%s").strip()
        nonce = secrets.token_urlsafe(24)
        text = "\n".join(["v1", timestamp, nonce, method, target, digest])
        mac = hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "Hotcell-Key": self.key,
            "Hotcell-Timestamp": timestamp,
            "Hotcell-Nonce": nonce,
            "Hotcell-Content-Sha256": digest,
            "Hotcell-Signature": "v1=" + mac,
        }
        words = ["curl", "-sS", "-X", method, "--max-time", str(timeout), "-w", "\n%{http_code}"]
        for name, value in headers.items():
            words += ["-H", f"{name}: {value}"]
        if data:
            words += ["--data-binary", "@-"]
        body = base64.b64encode(data).decode()
        # Through base64, so that bytes pass the driver whole.
        command = f"echo {body} | base64 -d | {shlex.join([*words, URL + target])} | base64 -w0"
        answer = base64.b64decode(machine.succeed(command, timeout=timeout + 30))
        content, status = answer.rsplit(b"\n", 1)
        try:
            return int(status), json.loads(content)
        except ValueError:
            return int(status), content

    def post(self, chat: str, route: str, body: dict[str, Any]) -> Any:
        body = {"user": {"id": "u1", "role": "editor"}} | body
        target = f"/v1/workspaces/{self.workspace}/chats/{chat}/{route}"
        status, answer = self.call("POST", target, json.dumps(body).encode())
        assert status == 200, f"{route}: {status} {answer}"
        return answer

    def bash(self, command: str, chat: str = "c1") -> Any:
        return self.post(chat, "bash", {"command": command})

    def says(self, command: str, chat: str = "c1") -> str:
        """What a command that ends well prints."""
        result = self.bash(command, chat)
        assert result["exit_code"] == 0, f"{command}: {result}"
        return str(result["stdout"]).strip()


def policy(document: dict[str, Any]) -> None:
    """What the sandboxes of the organization `acme` may reach from now on."""
    body = shlex.quote(json.dumps(document))
    machine.succeed(
        "curl -sf --unix-socket /run/hotcell/admin.sock -X PUT -H 'Content-Type: application/json' "
        f"--data {body} http://h/v1/admin/organizations/acme/network-policy"
    )


def main_pid() -> str:
    return machine.succeed("systemctl show -P MainPID hotcell.service").strip()


def restarts() -> int:
    return int(machine.succeed("systemctl show -P NRestarts hotcell.service"))


def sandbox_processes() -> list[str]:
    """The processes of all sandboxes, as the host's kernel sees them."""
    found = machine.succeed("cat $(find /sys/fs/cgroup/hotcell -name cgroup.procs) | sort -n")
    return found.split()
