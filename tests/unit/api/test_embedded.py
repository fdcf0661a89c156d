"""The options of the operator endpoints of an embedded node."""

from __future__ import annotations

from typing import Any, cast

import pytest

from svcnode import Node, OperatorOptions, asgi, wsgi
from svcnode.agent.embed.options import retained_headers, slash_redirect
from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted

TOKEN = "a-token-of-some-length"


@pytest.fixture
def node() -> Node:
    return Node("validator-7", version="v1")


def test_without_a_token_only_this_machine_is_trusted_and_the_token_is_a_secret() -> None:
    assert OperatorOptions().trusts_loopback
    assert OperatorOptions(token=TOKEN, trust_loopback=True).trusts_loopback
    options = OperatorOptions(token=TOKEN)
    assert not options.trusts_loopback
    assert TOKEN not in repr(options)
    assert TOKEN not in redacted(f"the token is {TOKEN}")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"token": "short"}, "token"),
        ({"token": "sixteen characters with spaces"}, "token"),
        ({"token": ""}, "token"),
        ({"token": 7}, "token"),
        ({"path": "status"}, "path"),
        ({"path": "/a/../b"}, "path"),
        ({"path": 7}, "path"),
        ({"unrestricted": True, "token": TOKEN}, "unrestricted"),
        ({"unrestricted": True, "trust_loopback": True}, "unrestricted"),
        ({"trust_loopback": False}, "trust_loopback"),
        ({"wsgi_streams": -1}, "wsgi_streams"),
    ],
)
def test_an_error_names_the_option(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{name}: ") as caught:
        OperatorOptions(**options)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(("path", "prefix"), [("/", ""), ("/status", "/status"), ("/status/", "/status")])
def test_a_slash_at_the_end_of_the_path_makes_no_difference(path: str, prefix: str) -> None:
    assert OperatorOptions(path=path).prefix == prefix


@pytest.mark.parametrize("make", [asgi, wsgi])
def test_other_values_of_the_argument_are_rejected(make: Any, node: Node) -> None:
    with pytest.raises(InvalidValueError, match="OperatorOptions"):
        make(node, operator=TOKEN)


@pytest.mark.parametrize("make", [asgi, wsgi])
def test_the_page_needs_a_path_of_its_own_beside_a_fallback_and_the_interface(make: Any, node: Node) -> None:
    fallback = cast("Any", object())
    with pytest.raises(InvalidValueError, match="path"):
        make(node, operator=True, fallback=fallback)
    with pytest.raises(InvalidValueError, match="prefix"):
        make(node, operator=True, prefix="/metrics")
    make(node, operator=True, prefix="/")
    make(node, operator=OperatorOptions(path="/status"), prefix="/metrics", fallback=fallback)


def test_a_redirect_is_relative_to_the_path_that_the_client_sees() -> None:
    assert dict(slash_redirect("/a/status").headers)["Location"] == "./status/"
    assert dict(slash_redirect("/a/x y:z").headers)["Location"] == "./x%20y%3Az/"


def test_repeated_headers_are_joined_and_unknown_ones_dropped() -> None:
    headers = [(b"host", b"a"), (b"x-forwarded-for", b"1"), (b"cookie", b"c"), (b"x-forwarded-for", b"2")]
    assert retained_headers(headers) == {b"host": b"a", b"x-forwarded-for": b"1, 2"}
