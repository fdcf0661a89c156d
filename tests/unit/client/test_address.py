"""Addresses of nodes in every accepted form."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from svcnode.client.address import parse_node_address, redact_url
from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted


@pytest.mark.parametrize(
    ("url", "prefix", "root"),
    [
        ("node.example", "/svc", "http://node.example/svc"),
        ("node.example:8420", "/svc", "http://node.example:8420/svc"),
        ("localhost:8420", "/svc", "http://localhost:8420/svc"),
        ("http://127.0.0.1:8420", "/svc", "http://127.0.0.1:8420/svc"),
        ("http://127.0.0.1:8420/", "/svc", "http://127.0.0.1:8420/svc"),
        (" HTTPS://Node.Example ", "/svc", "https://node.example/svc"),
        ("[::1]:8420", "/svc", "http://[::1]:8420/svc"),
        ("https://example.com/nodes/7/", "/svc", "https://example.com/nodes/7/svc"),
        ("h", "/eigen", "http://h/eigen"),
        ("h", "/a/b/", "http://h/a/b"),
        ("h", "/", "http://h"),
        ("h", "", "http://h"),
        ("h/base", "", "http://h/base"),
        # A URL copied from the log of a node.
        ("http://127.0.0.1:8420/svc/node", "/svc", "http://127.0.0.1:8420/svc"),
        ("http://127.0.0.1:8420/svc", "/svc", "http://127.0.0.1:8420/svc"),
        ("http://h/base/eigen/node/", "/eigen", "http://h/base/eigen"),
        ("http://h/svc/node/health", "/svc", "http://h/svc"),
        ("http://h/base/svc/node/services/", "/svc", "http://h/base/svc"),
        ("http://h/svc/node/services/a%2Fb/health", "/svc", "http://h/svc"),
        ("http://h/eigen/node", "/svc", "http://h/eigen"),
        ("http://h/base/eigen/node/services/db/health", "/svc", "http://h/base/eigen"),
        # Similar paths that are not endpoints.
        ("http://h/svc/node/7", "/svc", "http://h/svc/node/7/svc"),
        ("http://h/svc/node", "/eigen", "http://h/svc/node/eigen"),
        ("http://h/node", "/svc", "http://h/node/svc"),
        ("http://h/mysvc", "/svc", "http://h/mysvc/svc"),
    ],
)
def test_an_address_has_one_root(url: str, prefix: str, root: str) -> None:
    assert parse_node_address(url, prefix).root == root


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a b",
        "a\nb",
        "http://",
        ":8420",
        "h:http",
        "h:70000",
        "::1",
        "[::1",
        "ftp://h",
        "unix:",
        "unix:/run/\nx",
        "http:\\\\127.0.0.1:80",
        "h?version=v1",
        "h#x",
    ],
)
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_node_address(url)


def test_a_unix_socket_is_an_address() -> None:
    address = parse_node_address("unix:/run/my node.sock", "/eigen")
    assert (address.socket_path, address.root) == ("/run/my node.sock", "http://localhost/eigen")
    assert str(address) == "unix:/run/my node.sock"
    assert not address.uses_tls


@pytest.mark.parametrize("prefix", ["svc", "/a?b", "/a#b", "/a\nb"])
def test_a_prefix_is_a_path(prefix: str) -> None:
    with pytest.raises(InvalidValueError, match="prefix"):
        parse_node_address("h", prefix)


def test_a_login_is_sent_and_redacted() -> None:
    address = parse_node_address("https://bob:p%40ssw0rd@h:1/base")
    assert address.authorization == "Basic " + base64.b64encode(b"bob:p@ssw0rd").decode()
    assert address.root == "https://h:1/base/svc"
    assert str(address) == "https://bob:***@h:1/base"
    assert "ssw0rd" not in repr(address)
    assert address.authorization.split()[1] not in repr(address)
    assert redacted(f"echo {address.authorization}, p@ssw0rd") == "echo Basic ***, ***"


@pytest.mark.parametrize(
    "url", ["bob:hunter2/x@h", "bob:hunt#er2@h", "bob:hunter2@h:x", "bob:hunter2@", "bob:1/hunter2@h"]
)
def test_a_login_in_an_invalid_url_is_redacted(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_node_address(url)
    assert "hunt" not in str(caught.value)


def test_a_user_name_without_a_password_may_be_a_token_and_is_redacted() -> None:
    address = parse_node_address("ghp-7f3a9@h:1")
    assert address.authorization == "Basic " + base64.b64encode(b"ghp-7f3a9:").decode()
    assert str(address) == "http://***@h:1"
    assert redacted("echo ghp-7f3a9") == "echo ***"


@pytest.mark.parametrize("url", ["http://h/?token=hunter2", "h:1/base#hunter2", "http://bob:x@h/?token=hunter2"])
def test_a_query_is_an_error_and_is_redacted(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_node_address(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "redacted_url"),
    [
        ("https://h/path", "https://h/path"),
        ("/path", "/path"),
        ("https://h/path?token=x", "https://h/path?…"),
        ("https://h/#x", "https://h/?…"),
        ("https://bob:x@h/path", "…@h/path"),
        ("https://bob:x/y@z@h/path?a=b", "…@h/path?…"),
        ("https://bob:x?y@h/path", "…"),
        ("https://h/?mail=a@b", "…"),
        ("", ""),
    ],
)
def test_redact_url_removes_login_and_query(url: str, redacted_url: str) -> None:
    assert redact_url(url) == redacted_url


@pytest.mark.parametrize(("url", "prefix"), [(None, "/svc"), (8420, "/svc"), (b"h", "/svc"), ("h", None)])
def test_url_and_prefix_must_be_strings(url: Any, prefix: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^(url|prefix): "):
        parse_node_address(url, prefix)
