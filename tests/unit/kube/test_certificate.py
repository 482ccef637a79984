"""What credentials tell of themselves; the certificates are throw-away ones made by ``openssl req -x509``."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.kube.certificate import read_certificate, token_expiry

NODE = b"""\
-----BEGIN CERTIFICATE-----
MIIBwTCCAWegAwIBAgIUSdXVuEqjOJC9FxDQ+b6cF+IcfckwCgYIKoZIzj0EAwIw
NjEVMBMGA1UECgwMc3lzdGVtOm5vZGVzMR0wGwYDVQQDDBRzeXN0ZW06bm9kZTp3
b3JrZXItMTAeFw0yNjExMzAxNDI3MzlaFw0yNzExMzAxNDI3MzlaMDYxFTATBgNV
BAoMDHN5c3RlbTpub2RlczEdMBsGA1UEAwwUc3lzdGVtOm5vZGU6d29ya2VyLTEw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQhUvI7IlfuKrgbcg3dwbRMuAEIdwbR
EPEN0eu0yF5uLJLm92BfyjeTPbDE4I4hPA//s5U1SJ2coVLRFZLYvjDVo1MwUTAd
BgNVHQ4EFgQU4+JKTyGP3Z6aSvTsNu7Bqd0trK0wHwYDVR0jBBgwFoAU4+JKTyGP
3Z6aSvTsNu7Bqd0trK0wDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBF
AiB7VEXg/oe4Yr/R6nuInhvT1nIJaXBHjLt9QO71KpydoAIhAL3EyWtfA1OT0lsH
ccEK/jKnR1q0JAY46/PIAyTX0r+T
-----END CERTIFICATE-----
"""
FAR = b"""\
-----BEGIN CERTIFICATE-----
MIIBczCCARmgAwIBAgIUNOm8wBFmxyqo8SQWv0a2q/8gJTkwCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDZmFyMCAXDTI2MTEzMDE0MjczOVoYDzIwODEwOTAyMTQyNzM5
WjAOMQwwCgYDVQQDDANmYXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAS4Q3jo
yIKd/S5L5VHwKdODO+qNRc8cUssDK82nIWDtt5p/lRw61nmsnHOif3mK3Aqb29ks
ImnHwtvYfqoGRS+5o1MwUTAdBgNVHQ4EFgQU7XGXeQgsDwAsRoSXfni5Gx4ILXww
HwYDVR0jBBgwFoAU7XGXeQgsDwAsRoSXfni5Gx4ILXwwDwYDVR0TAQH/BAUwAwEB
/zAKBggqhkjOPQQDAgNIADBFAiALJnas1vSvkQ9MpE/XAyhvpZxEf6t8uj6sA7sW
y3E88AIhAO+XZOl1Oll2ifr6ufp1195w9MYKtlWzdnHR3slbdgTc
-----END CERTIFICATE-----
"""


def token(**claims: object) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "signature"])


def node_token(node: str) -> str:
    """Return a token of the account nodecpu/nodecpu, bound to a Node unless ``node`` is empty."""
    account = {"name": "nodecpu", "uid": "a"}
    bound = {"node": {"name": node, "uid": "b"}} if node else {}
    return token(exp=2, iat=1, **{"kubernetes.io": {"namespace": "nodecpu", "serviceaccount": account, **bound}})


def test_certificate_tells_its_end_and_the_nodes_name() -> None:
    found = read_certificate(b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n" + NODE)
    assert found is not None
    assert found.common_name == "system:node:worker-1"
    assert datetime.fromtimestamp(found.expires_at, tz=UTC) == datetime(2027, 11, 30, 14, 27, 39, tzinfo=UTC)


def test_years_beyond_2049_are_written_otherwise() -> None:
    """RFC 5280 4.1.2.5: UTCTime up to 2049, GeneralizedTime from 2050 on."""
    found = read_certificate(FAR)
    assert found is not None
    assert datetime.fromtimestamp(found.expires_at, tz=UTC) == datetime(2081, 9, 2, 14, 27, 39, tzinfo=UTC)


@pytest.mark.parametrize(
    "pem", [b"", b"text", NODE[:200], NODE.replace(b"MIIB", b"MIIC"), NODE.replace(b"MII", b"!!!")]
)
def test_what_is_no_certificate_tells_nothing(pem: bytes) -> None:
    assert read_certificate(pem) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_certificate_or_none(der: bytes) -> None:
    read_certificate(b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der) + b"\n-----END CERTIFICATE-----")


@given(st.integers(0, 450), st.integers(0, 255))
def test_any_damage_is_survived(position: int, value: int) -> None:
    der = bytearray(base64.b64decode(b"".join(NODE.splitlines()[1:-1])))
    der[position % len(der)] = value
    read_certificate(b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der) + b"\n-----END CERTIFICATE-----")


def test_token_tells_its_end() -> None:
    assert token_expiry(token(exp=1_800_000_000, sub="system:serviceaccount:nodecpu:nodecpu") + "\n") == 1_800_000_000


@pytest.mark.parametrize("text", ["", "opaque", "a.b.c", token(), token(exp="soon"), "..", "a.b.c.d"])
def test_other_tokens_tell_nothing(text: str) -> None:
    assert token_expiry(text) is None
