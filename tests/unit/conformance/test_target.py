"""Where a node is, as people write it."""

from __future__ import annotations

import base64

import pytest

from svcnode.conformance.response import safe_text
from svcnode.conformance.target import parse_target
from svcnode.core.address import parse_node_address
from svcnode.core.errors import InvalidValueError


@pytest.mark.parametrize(
    ("url", "shown", "host", "port"),
    [
        ("127.0.0.1:8420", "http://127.0.0.1:8420/svc", "127.0.0.1", 8420),
        ("node.example", "http://node.example/svc", "node.example", 80),
        ("http://node.example:80", "http://node.example/svc", "node.example", 80),
        ("https://node.example", "https://node.example/svc", "node.example", 443),
        ("http://[::1]:8420", "http://[::1]:8420/svc", "::1", 8420),
        ("http://node.example/base/", "http://node.example/base/svc", "node.example", 80),
        ("http://node.example/svc-1", "http://node.example/svc-1/svc", "node.example", 80),
        ("http://node.example/svc", "http://node.example/svc", "node.example", 80),
        ("http://node.example/base/svc/node/health/", "http://node.example/base/svc", "node.example", 80),
        ("http://node.example/svc/node/services/db/health", "http://node.example/svc", "node.example", 80),
        ("http://node.example/svc/node/7", "http://node.example/svc/node/7/svc", "node.example", 80),
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
        "ftp://node.example",
        "http://node.example:0x50",
        "http://node.example:70000",
        "http://node.example/\r\nX-Injected: 1",
        f"http://{'x' * 70}.example",
    ],
)
def test_an_unusable_url_is_rejected_with_an_example(url: str) -> None:
    with pytest.raises(InvalidValueError, match="write host:port or https://host:port"):
        parse_target(url)


@pytest.mark.parametrize(
    "url",
    [
        "me:hunter2/x@node.example",
        "ftp://me:hunter2@node.example",
        "http://node.example/?token=hunter2",
        "node.example#hunter2",
    ],
)
def test_a_possible_secret_in_a_rejected_url_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_target(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["h:1/svc/node", "http://h/base/svc/node/health", "h/svc/node/7", "h/eigen/node"])
def test_the_client_and_the_checker_read_a_url_alike(url: str) -> None:
    for prefix in ("/svc", "/eigen", ""):
        assert str(parse_target(url, prefix=prefix)) == parse_node_address(url, prefix).root


@pytest.mark.parametrize("prefix", ["svc", "/svc?x", "//svc"])
def test_an_invalid_prefix_is_rejected(prefix: str) -> None:
    with pytest.raises(InvalidValueError, match="/svc"):
        parse_target("http://node.example", prefix=prefix)


@pytest.mark.parametrize("login", ["me:hunter2", "me:hunter%32"])
def test_credentials_are_sent_in_the_header_and_never_shown(login: str) -> None:
    target = parse_target(f"http://{login}@node.example")
    assert target.authorization == f"Basic {base64.b64encode(b'me:hunter2').decode()}"
    assert (str(target), target.netloc) == ("http://node.example/svc", "node.example")
    assert "hunter" not in repr(target)
    assert safe_text("-hunter2-") == "-***-"
    assert parse_target("http://node.example").authorization == ""
