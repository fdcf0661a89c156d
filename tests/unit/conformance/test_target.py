"""Where a node is; tests/unit/core/test_address.py has the URLs as people write them."""

from __future__ import annotations

import base64

import pytest

from svcnode.conformance.response import safe_text
from svcnode.conformance.target import parse_target
from svcnode.core.errors import InvalidValueError


@pytest.mark.parametrize(
    ("url", "shown", "host", "port"),
    [
        ("127.0.0.1:8420", "http://127.0.0.1:8420/svc", "127.0.0.1", 8420),
        ("http://node.example:80", "http://node.example/svc", "node.example", 80),
        ("https://node.example", "https://node.example/svc", "node.example", 443),
        ("https://node.example:80", "https://node.example:80/svc", "node.example", 80),
        ("http://[::1]:8420", "http://[::1]:8420/svc", "::1", 8420),
        ("http://node.example/base/svc/node/health/", "http://node.example/base/svc", "node.example", 80),
    ],
)
def test_a_base_url_is_understood(url: str, shown: str, host: str, port: int) -> None:
    target = parse_target(url)
    assert (str(target), target.host, target.port) == (shown, host, port)


def test_a_prefix_is_appended_and_a_unix_socket_refused() -> None:
    assert parse_target("http://node.example/base", prefix="/eigen/").base == "/base/eigen"
    with pytest.raises(InvalidValueError, match="http or https URL"):
        parse_target("unix:/run/node.sock")


@pytest.mark.parametrize("login", ["me:hunter2", "me:hunter%32"])
def test_credentials_are_sent_in_the_header_and_never_shown(login: str) -> None:
    target = parse_target(f"http://{login}@node.example")
    assert target.authorization == f"Basic {base64.b64encode(b'me:hunter2').decode()}"
    assert (str(target), target.netloc) == ("http://node.example/svc", "node.example")
    assert "hunter" not in repr(target)
    assert safe_text("-hunter2-") == "-***-"
    assert parse_target("http://node.example").authorization == ""
