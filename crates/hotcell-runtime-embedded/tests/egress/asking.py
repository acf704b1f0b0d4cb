# A small client of its own for DNS, for questions that no library would ask.
import socket, struct, time

SERVER = open('/etc/resolv.conf').read().split()[1]
A, CNAME, NULL, PTR, MX, TXT, AAAA, SRV, SVCB, HTTPS = 1, 5, 10, 12, 15, 16, 28, 33, 64, 65


def wire(name):
    labels = [it.encode() for it in name.split('.') if it]
    return b''.join(bytes([len(it)]) + it for it in labels) + b'\0'


def message(questions, flags=0x100, count=None, edns=None, tail=b''):
    # `questions` are pairs of a name's bytes and a kind, or triples with a class.
    count = len(questions) if count is None else count
    out = struct.pack('>6H', 0x4843, flags, count, 0, 0, 0 if edns is None else 1)
    for question in questions:
        name, kind, *rest = question
        out += name + struct.pack('>2H', kind, rest[0] if rest else 1)
    if edns is not None:
        size, version = edns if isinstance(edns, tuple) else (edns, 0)
        out += b'\0' + struct.pack('>2H4BH', 41, size, 0, version, 0, 0, 0)
    return out + tail


def question(name, kind=A, **more):
    return message([(wire(name), kind)], **more)


def over_udp(said, wait=8):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(wait)
        s.sendto(said, (SERVER, 53))
        try:
            return s.recv(65535)
        except OSError:
            return None


def exactly(s, length):
    out = b''
    while len(out) < length:
        part = s.recv(length - len(out))
        if not part:
            return None
        out += part
    return out


def over_tcp(said, wait=8):
    with socket.create_connection((SERVER, 53), wait) as s:
        s.sendall(struct.pack('>H', len(said)) + said)
        try:
            length = exactly(s, 2)
            return length and exactly(s, struct.unpack('>H', length)[0])
        except OSError:
            return None


def code(reply):
    return None if reply is None else reply[3] & 15


def truncated(reply):
    return bool(reply[2] & 2)


def skip_name(reply, at):
    while True:
        length = reply[at]
        if length >= 0xc0:
            return at + 2
        at += 1 + length
        if length == 0:
            return at


def records(reply):
    # The answers: kind and data of each.
    questions, answers = struct.unpack('>2H', reply[4:8])
    at, out = 12, []
    for _ in range(questions):
        at = skip_name(reply, at) + 4
    for _ in range(answers):
        at = skip_name(reply, at)
        kind, _, _, length = struct.unpack('>2HIH', reply[at:at + 10])
        out.append((kind, reply[at + 10:at + 10 + length]))
        at += 10 + length
    return out


def addresses(reply):
    return [socket.inet_ntoa(data) for kind, data in records(reply) if kind == A]


def connects(address, port=443, wait=3):
    try:
        socket.create_connection((address, port), wait).close()
        return True
    except OSError:
        return False
