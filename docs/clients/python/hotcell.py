#!/usr/bin/env python3
"""A small client for hotcell. Needs nothing but Python 3.9.

As a library::

    client = hotcell.Client(url, key, secret, workspace="w1")
    chat = client.chat("chat-1", user="u1", role="editor")
    chat.upload("table.csv", data)
    result = chat.bash("wc -l /mnt/uploaded-files/table.csv")
    presented = chat.present_files(["report.xlsx"])
    data = chat.download(presented["outputs"][0])

As a command, with HOTCELL_URL, HOTCELL_KEY, HOTCELL_SECRET and HOTCELL_WORKSPACE set::

    hotcell.py bash 'python3 -V'

How requests are signed is specified in docs/api/signing.md; `sign` below is all of it.
"""

import argparse
import hashlib
import hmac
import http.client
import json
import os
import secrets
import sys
import time
import urllib.parse


def sign(key, secret, method, target, body_sha256, timestamp=None, nonce=None):
    """The five headers of a signed request.

    `target` is the request target exactly as it goes over the wire, query included.
    """
    timestamp = str(int(time.time()) if timestamp is None else timestamp)
    nonce = secrets.token_urlsafe(24) if nonce is None else nonce
    text = "\n".join(["v1", timestamp, nonce, method, target, body_sha256])
    mac = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return {
        "Hotcell-Key": key,
        "Hotcell-Timestamp": timestamp,
        "Hotcell-Nonce": nonce,
        "Hotcell-Content-Sha256": body_sha256,
        "Hotcell-Signature": "v1=" + mac,
    }


def quote(part):
    """One path component or query value, with everything but unreserved characters escaped."""
    return urllib.parse.quote(part, safe="")


class Problem(Exception):
    """A problem response: `code` is stable, `denial` names the limit or switch that said no."""

    def __init__(self, status, body):
        self.status = status
        self.body = body if isinstance(body, dict) else {}
        self.code = self.body.get("code", "unknown")
        self.denial = self.body.get("denial")
        detail = self.body.get("detail") or str(body)[:300]
        super().__init__(f"{status} {self.code}: {detail}")


def new_key():
    """A fresh idempotency key, for one request and its repeats."""
    return secrets.token_urlsafe(24)


def _keyed(idempotency_key):
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


class _Connection:
    """One kept-alive connection."""

    def __init__(self, url, timeout_s):
        parts = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(parts.hostname, parts.port, timeout=timeout_s)

    def send(self, method, target, headers, body):
        """Sends, once more on a fresh connection when the kept one was closed before the answer began."""
        for last_try in (False, True):
            fresh = self._http.sock is None
            try:
                self._http.request(method, target, body=body, headers=headers)
                return self._http.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._http.close()
                # A request that arrived is refused as a replay the second time, so this is safe.
                if last_try or fresh:
                    raise
        raise AssertionError("unreachable")


def _answer(response):
    data = response.read()
    kind = response.getheader("Content-Type", "")
    value = json.loads(data) if "json" in kind and data else data
    if response.status >= 400:
        raise Problem(response.status, value)
    return value


class Admin:
    """The operator's API, with the operator's token."""

    def __init__(self, url, token, timeout_s=60):
        self._connection = _Connection(url, timeout_s)
        self._token = token

    def call(self, method, target, body=None):
        headers = {"Authorization": "Bearer " + self._token}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        return _answer(self._connection.send(method, target, headers, data))


class Client:
    """A chat backend's side of one workspace."""

    def __init__(self, url, key, secret, workspace, timeout_s=3700):
        self._connection = _Connection(url, timeout_s)
        self._key = key
        self._secret = secret
        self.base = "/v1/workspaces/" + quote(workspace)

    def open(self, method, target, body=b"", headers=None):
        """Sends a signed request and returns the response with its body unread."""
        signed = sign(self._key, self._secret, method, target, hashlib.sha256(body).hexdigest())
        return self._connection.send(method, target, {**(headers or {}), **signed}, body or None)

    def call(self, method, target, body=None, headers=None):
        """Sends JSON, returns JSON (or the bytes, where the answer is no JSON)."""
        if body is None:
            return _answer(self.open(method, target, headers=headers))
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        return _answer(self.open(method, target, data, headers))

    def tools(self):
        """The two tools' definitions, for a model."""
        return self.call("GET", "/v1/tools")

    def chat(self, chat, user, role="editor"):
        """One chat, as one member sees it."""
        return Chat(self, chat, user, role)


class Chat:
    """One chat."""

    def __init__(self, client, chat, user, role):
        self._client = client
        self._base = client.base + "/chats/" + quote(chat)
        self._user = {"id": user, "role": role}
        self._who = "?user=" + quote(user) + "&role=" + quote(role)

    def upload(self, name, data):
        """Puts a file into /mnt/uploaded-files; the answer says where and whether it replaced one."""
        target = self._base + "/uploads/" + quote(name) + self._who
        headers = {"Content-Type": "application/octet-stream"}
        return _answer(self._client.open("PUT", target, data, headers))

    def uploads(self):
        return self._client.call("GET", self._base + "/uploads" + self._who)

    def bash(self, command, timeout_ms=None, restart=None, on_output=None, idempotency_key=None):
        """Runs a command and returns its result.

        With an `idempotency_key` (see `new_key`) the same call can be made again after an answer
        was lost: the command does not run twice, and the first answer comes again.

        With `on_output(stream, text)` the output is handed over while it comes; when the
        connection breaks in the middle, the call is taken up where it was, not run again.
        """
        body = {"user": self._user, "command": command}
        if timeout_ms is not None:
            body["timeout_ms"] = timeout_ms
        if restart is not None:
            body["restart"] = restart
        if on_output is None:
            return self._client.call("POST", self._base + "/bash", body, _keyed(idempotency_key))
        return self._follow(json.dumps(body).encode(), on_output, _keyed(idempotency_key))

    def _follow(self, body, on_output, keyed):
        headers = {"Accept": "text/event-stream", "Content-Type": "application/json", **keyed}
        response = self._client.open("POST", self._base + "/bash", body, headers)
        call, last_id = None, None
        while True:
            if response.status >= 400:
                _answer(response)
            try:
                for event, event_id, data in _events(response):
                    last_id = event_id or last_id
                    if event == "call":
                        call = data["call"]
                    elif event == "output":
                        on_output(data["stream"], data["text"])
                    elif event == "result":
                        response.read()
                        return data
                    elif event == "problem":
                        response.read()
                        raise Problem(data.get("status", 500), data)
            except (http.client.IncompleteRead, ConnectionError, TimeoutError):
                pass
            if call is None:
                raise ConnectionError("the connection was lost before the call had a name")
            response.close()
            headers = {"Accept": "text/event-stream"}
            if last_id:
                headers["Last-Event-ID"] = last_id
            target = self._base + "/bash/" + quote(call) + self._who
            response = self._client.open("GET", target, b"", headers)

    def present_files(self, paths, idempotency_key=None):
        """Collects files into the chat: `{"outputs": […], "skipped": […]}`."""
        body = {"user": self._user, "paths": paths}
        return self._client.call("POST", self._base + "/present_files", body, _keyed(idempotency_key))

    def start_job(self, command, idempotency_key=None):
        """Starts a command that outlives the call; the answer has its `id`."""
        body = {"user": self._user, "command": command}
        return self._client.call("POST", self._base + "/jobs", body, _keyed(idempotency_key))

    def job(self, job):
        """A job as it stands, by its id."""
        return self._client.call("GET", self._base + "/jobs/" + quote(job) + self._who)

    def stop_job(self, job):
        """Ends a job and all that it started."""
        return self._client.call("DELETE", self._base + "/jobs/" + quote(job) + self._who)

    def outputs(self):
        return self._client.call("GET", self._base + "/outputs" + self._who)

    def download(self, output):
        """The bytes of a collected file (one of `present_files`' outputs)."""
        return self._bytes("/outputs/" + quote(output["id"]) + "/content")

    def download_upload(self, name):
        """The bytes of an attached file."""
        return self._bytes("/uploads/" + quote(name))

    def remove_upload(self, name):
        self._client.call("DELETE", self._base + "/uploads/" + quote(name) + self._who)

    def _bytes(self, path):
        response = self._client.open("GET", self._base + path + self._who)
        # A file may be JSON itself: it is handed over as it is.
        return response.read() if response.status == 200 else _answer(response)

    def lease(self):
        """The chat's sandbox: the live one, else the last one that ended, else None."""
        return self._client.call("GET", self._base + "/lease" + self._who)["lease"]

    def end(self):
        """Ends the chat's sandbox; its volumes stay. The sandbox as it stands then, or None."""
        return self._client.call("DELETE", self._base + "/lease" + self._who)["lease"]


def _events(response):
    """Server-sent events: (event, id, data)."""
    event, event_id, data = "message", None, []
    while True:
        line = response.readline()
        if not line:
            return
        line = line.decode().rstrip("\r\n")
        if not line:
            if data:
                yield event, event_id, json.loads("\n".join(data))
            event, event_id, data = "message", None, []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if field == "event":
                event = value
            elif field == "id":
                event_id = value
            elif field == "data":
                data.append(value)


def from_environment():
    """A client from HOTCELL_URL, HOTCELL_KEY, HOTCELL_SECRET, HOTCELL_WORKSPACE."""
    names = ["HOTCELL_URL", "HOTCELL_KEY", "HOTCELL_SECRET", "HOTCELL_WORKSPACE"]
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise SystemExit("set " + ", ".join(missing) + " (cargo xtask demo --keep writes them to target/demo/env)")
    return Client(*(os.environ[name] for name in names))


def main():
    parser = argparse.ArgumentParser(description="Run a command, or fetch files, through hotcell.")
    parser.add_argument("--chat", default="shell", help="the chat (default: shell)")
    parser.add_argument("--user", default="u1", help="the member (default: u1)")
    commands = parser.add_subparsers(dest="what", required=True)
    bash = commands.add_parser("bash", help="run a command; its exit code becomes ours")
    bash.add_argument("command")
    bash.add_argument("--timeout-ms", type=int)
    upload = commands.add_parser("upload", help="put a file into /mnt/uploaded-files")
    upload.add_argument("file")
    present = commands.add_parser("present", help="collect files and download them here")
    present.add_argument("paths", nargs="+")
    commands.add_parser("lease", help="show the chat's sandbox")
    commands.add_parser("end", help="end the chat's sandbox")
    arguments = parser.parse_args()
    chat = from_environment().chat(arguments.chat, arguments.user)
    try:
        if arguments.what == "bash":
            streams = {"stdout": sys.stdout, "stderr": sys.stderr}

            def show(stream, text):
                streams[stream].write(text)
                streams[stream].flush()

            result = chat.bash(arguments.command, timeout_ms=arguments.timeout_ms, on_output=show)
            for note in result.get("notes", []):
                print("note:", note, file=sys.stderr)
            return 124 if result["timed_out"] else result["exit_code"]
        if arguments.what == "upload":
            with open(arguments.file, "rb") as file:
                print(json.dumps(chat.upload(os.path.basename(arguments.file), file.read())))
        elif arguments.what == "present":
            presented = chat.present_files(arguments.paths)
            for output in presented["outputs"]:
                name = os.path.basename(output["name"])
                with open(name, "xb") as file:
                    file.write(chat.download(output))
                print(name)
            for skipped in presented["skipped"]:
                print(f"skipped {skipped['path']}: {skipped['reason']}", file=sys.stderr)
        else:
            print(json.dumps(getattr(chat, arguments.what)(), indent=2))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
