"""Where a node is, as people write it."""

from __future__ import annotations

import base64

import pytest

from svcnode.client.address import parse_node_address
from svcnode.conformance.target import parse_target
from svcnode.conformance.text import safe_text
from svcnode.core.errors import InvalidValueError


@pytest.mark.parametrize(
    ("url", "shown", "host", "port"),
    [
        ("http://127.0.0.1:8420", "http://127.0.0.1:8420/svc", "127.0.0.1", 8420),
        ("127.0.0.1:8420", "http://127.0.0.1:8420/svc", "127.0.0.1", 8420),
        ("node.example", "http://node.example/svc", "node.example", 80),
        ("http://node.example/", "http://node.example/svc", "node.example", 80),
        ("http://node.example:80", "http://node.example/svc", "node.example", 80),
        ("https://node.example", "https://node.example/svc", "node.example", 443),
        ("http://[::1]:8420", "http://[::1]:8420/svc", "::1", 8420),
        ("http://node.example/base/", "http://node.example/base/svc", "node.example", 80),
        ("http://node.example/svc-1", "http://node.example/svc-1/svc", "node.example", 80),
        ("http://node.example/svc", "http://node.example/svc", "node.example", 80),
        ("http://node.example/svc/node", "http://node.example/svc", "node.example", 80),
        ("http://node.example/base/svc/node/health/", "http://node.example/base/svc", "node.example", 80),
        ("http://node.example/svc/node/services", "http://node.example/svc", "node.example", 80),
        ("http://node.example/svc/node/services/db/health", "http://node.example/svc", "node.example", 80),
        ("http://node.example/svc/node/7", "http://node.example/svc/node/7/svc", "node.example", 80),
        ("http://node.example/node", "http://node.example/node/svc", "node.example", 80),
        ("http://knöten.example", "http://xn--knten-kua.example/svc", "xn--knten-kua.example", 80),
        ("http://node.example/größe", "http://node.example/gr%C3%B6%C3%9Fe/svc", "node.example", 80),
    ],
)
def test_a_base_url_is_understood(url: str, shown: str, host: str, port: int) -> None:
    target = parse_target(url)
    assert (str(target), target.host, target.port) == (shown, host, port)


@pytest.mark.parametrize(("prefix", "shown"), [("/eigen", "/eigen"), ("/a/b/", "/a/b"), ("/", ""), ("", "")])
def test_a_prefix_is_appended(prefix: str, shown: str) -> None:
    assert parse_target("http://node.example", prefix=prefix).base == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "ftp://node.example",
        "http://node.example:0x50",
        "http:\\\\node.example",
        "http://node.example:70000",
        "http://[::1",
        "http://node.example/\r\nX-Injected: 1",
        f"http://{'x' * 70}.example",
    ],
)
def test_what_is_no_base_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidValueError, match="is not the base URL of a node; write it like http://"):
        parse_target(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("me:hunter2/x@node.example", "is not the base URL of a node"),
        ("ftp://me:hunter2@node.example", "is not the base URL of a node"),
        ("http://node.example/?token=hunter2", "ends before a"),
        ("node.example#hunter2", "ends before a"),
    ],
)
def test_what_may_be_a_secret_in_the_url_is_refused_and_not_shown(url: str, why: str) -> None:
    with pytest.raises(InvalidValueError, match=why) as caught:
        parse_target(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["h", "h:1/svc/node", "https://h/base/svc/node/health", "h/svc/node/7", "h/eigen/node"])
def test_what_those_who_ask_take_for_a_node_is_taken_for_the_same_here(url: str) -> None:
    for prefix in ("/svc", "/eigen", ""):
        assert str(parse_target(url, prefix=prefix)) == parse_node_address(url, prefix).root


@pytest.mark.parametrize("prefix", ["svc", "/svc?x", "/s vc", "//svc"])
def test_what_is_no_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a prefix; write it like /svc"):
        parse_target("http://node.example", prefix=prefix)


@pytest.mark.parametrize("login", ["me:hunter2", "me:hunter%32"])
def test_a_login_is_for_the_header_and_for_nobody_to_see(login: str) -> None:
    target = parse_target(f"http://{login}@node.example")
    assert target.authorization == f"Basic {base64.b64encode(b'me:hunter2').decode()}"
    assert (str(target), target.netloc) == ("http://node.example/svc", "node.example")
    assert "hunter" not in repr(target)
    assert safe_text("it said hunter2") == "it said ***"


def test_without_a_login_nothing_is_sent() -> None:
    assert parse_target("http://node.example").authorization == ""
