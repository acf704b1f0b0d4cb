#!/usr/bin/env python3
"""The demo's chat, through the public API: a real table becomes a report.

`cargo xtask demo` starts an appliance and runs this against it.
"""

import argparse
import contextlib
import csv
import hashlib
import os
import pathlib
import socket
import sys
import time

import hotcell

ORGANIZATION, WORKSPACE, CHAT, USER = "demo", "demo", "chat-1", "ada"

CLEAN = r"""
cat > clean.py <<'PY'
import pandas as pd

raw = pd.read_csv("/mnt/uploaded-files/co2.csv", dtype={"date": str})
raw["date"] = pd.to_datetime(raw["date"], format="%Y%m%d")
weekly = raw.set_index("date")["co2"]
print(f"{len(weekly)} weeks from {weekly.index.min():%Y-%m-%d} to {weekly.index.max():%Y-%m-%d}, "
      f"{weekly.isna().sum()} without a measurement")
weekly.interpolate(method="time").rename("co2").to_csv("clean.csv")
yearly = weekly.groupby(weekly.index.year).agg(["count", "mean", "min", "max"]).round(3)
yearly.index.name = "year"
yearly.to_csv("yearly.csv")
print(yearly.tail(5).to_string())
PY
python3 clean.py
"""

REPORT = r"""
cat > report.py <<'PY'
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from docx import Document
from docx.shared import Inches

clean = pd.read_csv("clean.csv", parse_dates=["date"]).set_index("date")["co2"]
yearly = pd.read_csv("yearly.csv").set_index("year")

figure, axes = plt.subplots(figsize=(9, 4.5))
axes.plot(clean.index, clean, linewidth=0.7, label="weekly, gaps filled")
axes.plot(pd.to_datetime(yearly.index.astype(str) + "-07-01"), yearly["mean"], linewidth=2, label="yearly mean")
axes.set_ylabel("CO2, parts per million by volume")
axes.set_title("Carbon dioxide at Mauna Loa")
axes.legend()
figure.savefig("co2.png", dpi=120, bbox_inches="tight")

with pd.ExcelWriter("co2.xlsx") as book:
    yearly.to_excel(book, sheet_name="yearly")
    clean.to_frame().to_excel(book, sheet_name="weekly")

full = yearly[yearly["count"] >= 40]
first, last = full.index[0], full.index[-1]
rise = (full.loc[last, "mean"] - full.loc[first, "mean"]) / (last - first)
document = Document()
document.add_heading("Carbon dioxide at Mauna Loa", 0)
document.add_paragraph(
    f"From {first} to {last} the yearly mean rose from {full.loc[first, 'mean']:.2f} to "
    f"{full.loc[last, 'mean']:.2f} ppmv: {rise:.2f} ppmv a year.")
document.add_picture("co2.png", width=Inches(6))
table = document.add_table(rows=1, cols=2)
table.rows[0].cells[0].text, table.rows[0].cells[1].text = "year", "mean"
for year, row in full.iloc[::5].iterrows():
    cells = table.add_row().cells
    cells[0].text, cells[1].text = str(year), f"{row['mean']:.2f}"
document.save("co2.docx")
print(f"rise: {rise:.2f} ppmv a year")
PY
python3 report.py
ls -l co2.png co2.xlsx co2.docx
"""

REACH = r"""
import socket, sys
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=1.5).close()
        return "OPEN"
    except OSError as error:
        return f"BLOCKED ({error.strerror or error})"
server = socket.create_server(("127.0.0.1", 0))
print("itself", reach("127.0.0.1", server.getsockname()[1]))
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    print(target, reach(host, int(port)))
"""


class Steps:
    """Says what is done and how long it took."""

    def __init__(self):
        self.timings = []

    @contextlib.contextmanager
    def step(self, text):
        print(f"\n--- {text}", flush=True)
        begin = time.monotonic()
        yield
        self.timings.append((text, time.monotonic() - begin))

    def table(self):
        print("\nTimings")
        for text, seconds in self.timings:
            print(f"  {seconds:8.3f} s  {text}")


def check(true, message):
    if not true:
        raise SystemExit("demo: " + message)


def switch_on(url, token, env_file):
    """Everything is off by default: an operator switches it on, level by level."""
    admin = hotcell.Admin(url, token)
    admin.call("PUT", f"/v1/admin/organizations/{ORGANIZATION}", {"name": "Demo", "enabled": True})
    admin.call(
        "PUT",
        f"/v1/admin/workspaces/{WORKSPACE}",
        {"organization": ORGANIZATION, "name": "Demo", "enabled": True},
    )
    credential = admin.call("POST", f"/v1/admin/organizations/{ORGANIZATION}/credentials", {})
    client = hotcell.Client(url, credential["key"], credential["secret"], WORKSPACE)
    try:
        client.chat(CHAT, USER).bash("true")
    except hotcell.Problem as problem:
        print(f"before the switch: {problem.status} {problem.code}, denial {problem.denial!r}")
        check(problem.denial == "deployment", "a call before the switch must be denied by name")
    else:
        raise SystemExit("demo: a call before the switch was not denied")
    admin.call("PUT", "/v1/admin/deployment", {"enabled": True})
    lines = {
        "HOTCELL_URL": url,
        "HOTCELL_KEY": credential["key"],
        "HOTCELL_SECRET": credential["secret"],
        "HOTCELL_ADMIN_TOKEN": token,
        "HOTCELL_ORGANIZATION": ORGANIZATION,
        "HOTCELL_WORKSPACE": WORKSPACE,
    }
    descriptor = os.open(env_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in lines.items())
    return client


def host_addresses():
    """Addresses of this host that a sandbox must not reach."""
    found = {"127.0.0.1"}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        found.add(probe.getsockname()[0])
    return found - {"127.0.0.1"}


def run(chat, command, **options):
    """One bash call, its output shown as it comes."""
    result = chat.bash(command, on_output=lambda stream, text: print(text, end="", flush=True), **options)
    check(result["exit_code"] == 0, f"the command failed: {result}")
    return result


def parse_back(files, table):
    """The files must open here, and say what the table says."""
    import docx
    import openpyxl
    from PIL import Image

    by_year = {}
    with open(table, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["co2"]:
                by_year.setdefault(int(row["date"][:4]), []).append(float(row["co2"]))
    sheet = openpyxl.load_workbook(files / "co2.xlsx")["yearly"]
    rows = {row[0]: row for row in sheet.iter_rows(min_row=2, values_only=True)}
    check(rows.keys() == by_year.keys(), "the workbook has other years than the table")
    for year, values in by_year.items():
        mean = sum(values) / len(values)
        check(rows[year][1] == len(values), f"the workbook counts {rows[year][1]} weeks in {year}")
        check(abs(rows[year][2] - mean) < 0.001, f"the workbook's mean of {year} is off")
    print(f"co2.xlsx: {len(rows)} years, each mean recomputed here and equal")
    document = docx.Document(files / "co2.docx")
    check(len(document.inline_shapes) == 1 and len(document.tables) == 1, "the document lacks its parts")
    print("co2.docx:", document.paragraphs[1].text)
    with Image.open(files / "co2.png") as image:
        image.load()
        check(image.format == "PNG" and len(image.getcolors(1 << 24) or []) > 10, "the chart is blank")
        print(f"co2.png: {image.width} x {image.height} pixels")


def play(steps, chat, arguments):
    """The chat."""
    data = arguments.table.read_bytes()
    with steps.step(f"the user attaches a table of {len(data)} bytes"):
        uploaded = chat.upload("co2.csv", data)
        print("it is", uploaded["path"])
    with steps.step("the first command (makes the sandbox)"):
        run(chat, "uname -sr; id; nproc; df -h /workspace | tail -1; head -3 /mnt/uploaded-files/co2.csv")
        engine = chat.lease().get("engine") or {}
        print(f"isolation: {engine.get('isolation')}, {engine.get('engine')}")
    with steps.step("the second command (same sandbox)"):
        run(chat, "true")
    with steps.step("clean and summarise with pandas"):
        run(chat, CLEAN)
    with steps.step("draw a chart, write a workbook and a document"):
        run(chat, REPORT)
    with steps.step("present the files"):
        presented = chat.present_files(["co2.xlsx", "co2.docx", "co2.png", "report.py"])
        for output in presented["outputs"]:
            print(f"{output['name']:12}{output['bytes']:>10} bytes  {output['media_type']}")
        for skipped in presented["skipped"]:
            print(f"{skipped['path']:12}    skipped: {skipped['reason']}")
        names = {output["name"] for output in presented["outputs"]}
        check(names == {"co2.xlsx", "co2.docx", "co2.png"}, f"presented {names}")
        check(len(presented["skipped"]) == 1, "a Python file must not leave the sandbox")
    with steps.step("download them and open them here"):
        arguments.files.mkdir(parents=True, exist_ok=True)
        for output in presented["outputs"]:
            content = chat.download(output)
            check(len(content) == output["bytes"], f"{output['name']} came short")
            (arguments.files / output["name"]).write_bytes(content)
            print(f"{output['name']}: sha256 {hashlib.sha256(content).hexdigest()[:16]}…")
        parse_back(arguments.files, arguments.table)
    with steps.step("what the sandbox can reach"), socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        targets = [f"{address}:{port}" for address in sorted(host_addresses())]
        targets += ["169.254.169.254:80", "203.0.113.1:443"]
        result = run(chat, f"cat > reach.py <<'PY'\n{REACH}\nPY\npython3 reach.py {' '.join(targets)}")
        lines = result["stdout"].splitlines()
        check("OPEN" in lines[0], "the positive control failed, so the rest proves nothing")
        check(len(lines) == len(targets) + 1 and all("BLOCKED" in line for line in lines[1:]), "something was open")
    with steps.step("exit codes are the shell's, and the background does not hold a call"):
        result = chat.bash("sleep 300 & echo started; exit 7")
        print({name: result[name] for name in ("exit_code", "stdout", "still_running", "duration_ms")})
        check(result["exit_code"] == 7 and result["still_running"] == 1, "exit code or count is wrong")
        check(result["duration_ms"] < 2000, "the call waited for the background")
    with steps.step("end the sandbox"):
        chat.end()
        check(len(chat.outputs()["outputs"]) == 3, "outputs must outlive the sandbox")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, type=pathlib.Path)
    parser.add_argument("--files", required=True, type=pathlib.Path)
    parser.add_argument("--env", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    steps = Steps()

    with steps.step("the operator switches it on"):
        client = switch_on(os.environ["HOTCELL_URL"], os.environ["HOTCELL_ADMIN_TOKEN"], arguments.env)
    chat = client.chat(CHAT, USER)
    try:
        play(steps, chat, arguments)
    finally:
        with contextlib.suppress(Exception):
            chat.end()
    steps.table()


if __name__ == "__main__":
    sys.exit(main())
