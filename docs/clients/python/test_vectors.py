#!/usr/bin/env python3
"""Checks the client's `sign` against the test vectors of docs/api/signing.md."""

import hashlib
import json
import pathlib
import re
import unittest

import hotcell

SIGNING = pathlib.Path(__file__).resolve().parents[2] / "api" / "signing.md"


def vectors():
    blocks = re.findall(r"^```json\n(.*?)^```$", SIGNING.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = [block for block in blocks if '"string_to_sign"' in block]
    return json.loads(block)


class Vectors(unittest.TestCase):
    def test_every_vector(self):
        found = vectors()
        self.assertGreaterEqual(len(found), 6)
        for vector in found:
            with self.subTest(vector["name"]):
                body_sha256 = hashlib.sha256(vector["body"].encode()).hexdigest()
                self.assertEqual(body_sha256, vector["body_sha256"])
                headers = hotcell.sign(
                    vector["key"],
                    vector["secret"],
                    vector["method"],
                    vector["target"],
                    body_sha256,
                    vector["timestamp"],
                    vector["nonce"],
                )
                self.assertEqual(headers["Hotcell-Key"], vector["key"])
                self.assertEqual(headers["Hotcell-Timestamp"], str(vector["timestamp"]))
                self.assertEqual(headers["Hotcell-Nonce"], vector["nonce"])
                self.assertEqual(headers["Hotcell-Content-Sha256"], body_sha256)
                self.assertEqual(headers["Hotcell-Signature"], vector["signature"])
                lines = vector["string_to_sign"].split("\n")
                self.assertEqual(
                    lines,
                    ["v1", str(vector["timestamp"]), vector["nonce"], vector["method"], vector["target"], body_sha256],
                )

    def test_fresh_requests_differ(self):
        one, two = (hotcell.sign("k", "s", "GET", "/", "0" * 64) for _ in range(2))
        self.assertNotEqual(one["Hotcell-Nonce"], two["Hotcell-Nonce"])
        self.assertRegex(one["Hotcell-Nonce"], r"^[A-Za-z0-9_-]{16,64}$")

    def test_names_are_escaped_whole(self):
        self.assertEqual(hotcell.quote("a b+c/d?e#f%ü~'*"), "a%20b%2Bc%2Fd%3Fe%23f%25%C3%BC~%27%2A")


if __name__ == "__main__":
    unittest.main()
