# The demo's world: names on one address, pages on the others. Ends with its standard input.
import http.server
import socket
import struct
import sys
import threading

resolver = sys.argv[1]
names = dict(word.split("=") for word in sys.argv[2:])


def reply(asked):
    labels, at = [], 12
    while asked[at]:
        labels.append(asked[at + 1:at + 1 + asked[at]].decode().lower())
        at += 1 + asked[at]
    question = asked[12:at + 5]
    kind = struct.unpack(">H", asked[at + 1:at + 3])[0]
    address = names.get(".".join(labels))
    answer = b""
    if address and kind == 1:
        answer = b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 60, 4) + socket.inet_aton(address)
    flags = 0x8180 if address else 0x8183
    return asked[:2] + struct.pack(">5H", flags, 1, 1 if answer else 0, 0, 0) + question + answer


def answer_names():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((resolver, 53))

    def work():
        while True:
            asked, who = sock.recvfrom(4096)
            try:
                sock.sendto(reply(asked), who)
            except (IndexError, UnicodeDecodeError, struct.error):
                pass

    threading.Thread(target=work, daemon=True).start()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = f"this is {self.headers['Host']} at {self.server.server_address[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


answer_names()
for address in names.values():
    pages = http.server.ThreadingHTTPServer((address, 80), Page)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
