from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.address import (
    Address,
    RegistryAddress,
    is_loopback,
    parse_address,
    parse_node_address,
    parse_registry_url,
)
from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8420", Address(scheme="http", host="127.0.0.1", port=8420)),
        ("http://127.0.0.1:8420/", Address(scheme="http", host="127.0.0.1", port=8420)),
        ("localhost:0", Address(scheme="http", host="localhost", port=0)),
        ("0.0.0.0:65535", Address(scheme="http", host="0.0.0.0", port=65535)),
        ("[::1]:8420", Address(scheme="http", host="::1", port=8420)),
        ("[FE80::1%eth0]:80", Address(scheme="http", host="fe80::1%eth0", port=80)),
        ("unix:/run/svcnode.sock", Address(scheme="unix", path="/run/svcnode.sock")),
    ],
)
def test_an_address_is_parsed(text: str, address: Address) -> None:
    assert parse_address(text, has_tls=False) == address


def test_with_a_certificate_an_address_uses_tls_unless_its_scheme_is_http() -> None:
    schemes = {"127.0.0.1:1": "https", "https://[::1]:1": "https", "http://localhost:0": "http", "unix:/a b": "unix"}
    assert {text: parse_address(text, has_tls=True).scheme for text in schemes} == schemes
    for text in [*schemes][1:]:
        assert str(parse_address(text, has_tls=True)) == text


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("127.0.0.1:8420", "http://127.0.0.1:8420", True),
        ("127.0.0.1:8420", "0.0.0.0:8420", True),
        ("[::1]:8420", "[::]:8420", True),
        ("127.0.0.1:8420", "[::]:8420", False),
        ("0.0.0.0:8420", "[::]:8420", False),
        ("127.0.0.1:8420", "127.0.0.2:8420", False),
        ("127.0.0.1:8420", "0.0.0.0:8421", False),
        ("127.0.0.1:8420", "localhost:8420", False),
        ("127.0.0.1:0", "0.0.0.0:0", False),
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("127.0.0.1:0", "https://127.0.0.1:0", False),
        ("unix:/run/a", "unix:/run/a", True),
        ("unix:/run/a", "unix:/run/b", False),
        ("unix:/run/a", "127.0.0.1:0", False),
    ],
)
def test_addresses_that_cannot_both_be_bound_overlap(one: str, other: str, overlap: bool) -> None:
    addresses = [parse_address(text, has_tls=text.startswith("https:")) for text in (one, other)]
    assert [first.overlaps(second) for first, second in (addresses, addresses[::-1])] == [overlap, overlap]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8420", '"127.0.0.1:8420"'),
        ("::1:8420", '"[::1]:8420"'),
        ("", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:80 ", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:٨٠", '"unix:/run/svcnode.sock"'),
        ("[]:80", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:65536", "65535"),
        ("[127.0.0.1]:80", "IPv6"),
        ("https://127.0.0.1:1", "[server.tls]"),
        ("unix:", '"unix:/run/svcnode.sock"'),
        ("unix:/a\0b", "control characters"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_address(text, has_tls=False)
    assert hint in str(caught.value)


@given(st.text(max_size=20) | st.from_regex(r"(https?://)?(\[.*\]|.*):[0-9]{1,6}/?", fullmatch=True))
def test_any_text_is_an_address_or_an_invalid_value(text: str) -> None:
    try:
        address = parse_address(text, has_tls=True)
    except InvalidValueError:
        return
    assert parse_address(str(address), has_tls=True) == address


def test_two_addresses_have_one_bind_key_whatever_their_scheme() -> None:
    plain = Address(scheme="http", host="127.0.0.1", port=1)
    assert plain.bind_key == Address(scheme="https", host="127.0.0.1", port=1).bind_key
    assert plain.bind_key != Address(scheme="http", host="127.0.0.1", port=2).bind_key
    assert plain.bind_key != Address(scheme="http", host="127.0.0.2", port=1).bind_key
    assert Address(scheme="unix", path="/a").bind_key != Address(scheme="unix", path="/b").bind_key


@pytest.mark.parametrize(
    ("url", "prefix", "root"),
    [
        ("node.example", "/svc", "http://node.example/svc"),
        ("http://127.0.0.1:8420/", "/svc", "http://127.0.0.1:8420/svc"),
        (" HTTPS://Node.Example ", "/svc", "https://node.example/svc"),
        ("http://knöten.example/größe", "/svc", "http://xn--knten-kua.example/gr%C3%B6%C3%9Fe/svc"),
        ("[::1]:8420", "/svc", "http://[::1]:8420/svc"),
        ("https://example.com/nodes/7/", "/svc", "https://example.com/nodes/7/svc"),
        ("h", "/a/b/", "http://h/a/b"),
        ("h", "/", "http://h"),
        ("h", "", "http://h"),
        ("h/base", "", "http://h/base"),
        # A URL copied from the log of a node.
        ("http://127.0.0.1:8420/svc/node", "/svc", "http://127.0.0.1:8420/svc"),
        ("http://h/base/eigen/node/", "/eigen", "http://h/base/eigen"),
        ("http://h/svc/node/health", "/svc", "http://h/svc"),
        ("http://h/base/svc/node/services/", "/svc", "http://h/base/svc"),
        ("http://h/svc/node/services/a%2Fb/health", "/svc", "http://h/svc"),
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
    "url", ["", "a b", "a\nb", "http://", "h:70000", "[::1", "ftp://h", "unix:", "h\\x", "h?a", "h#x", "a..b", "m@x@h"]
)
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_node_address(url)


def test_a_unix_socket_is_an_address() -> None:
    address = parse_node_address("unix:/run/my node.sock", "/eigen")
    assert (address.socket_path, address.root) == ("/run/my node.sock", "http://localhost/eigen")
    assert str(address) == "unix:/run/my node.sock"
    assert not address.uses_tls


@pytest.mark.parametrize("prefix", ["svc", "/a?b", "/a#b", "/a\nb", "//a", None])
def test_a_prefix_is_a_path_and_a_url_a_string(prefix: Any) -> None:
    with pytest.raises(InvalidValueError, match="prefix"):
        parse_node_address("h", prefix)
    url: Any
    for url in (None, 8420, b"h"):
        with pytest.raises(InvalidValueError, match=r"^url: "):
            parse_node_address(url)


def test_a_login_is_sent_and_redacted() -> None:
    address = parse_node_address("https://bob:p%40ssw0rd@h:1/base")
    assert address.url.basic_authorization == "Basic " + base64.b64encode(b"bob:p@ssw0rd").decode()
    assert address.root == "https://h:1/base/svc"
    assert str(address) == "https://bob:***@h:1/base"
    assert "ssw0rd" not in repr(address)
    assert address.url.basic_authorization.split()[1] not in repr(address)
    assert redacted(f"echo {address.url.basic_authorization}, p@ssw0rd") == "echo Basic ***, ***"


@pytest.mark.parametrize(
    "url", ["bob:hunter2/x@h", "bob:hunt#er2@h", "bob:hunter2@h:x", "bob:hunter2@", "bob:1/hunter2@h", "h/?key=hunter2"]
)
def test_a_login_or_query_in_an_invalid_url_is_redacted(url: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_node_address(url)
    assert "hunt" not in str(caught.value)


def test_a_user_name_without_a_password_may_be_a_token_and_is_redacted() -> None:
    address = parse_node_address("ghp-7f3a9@h:1")
    assert address.url.basic_authorization == "Basic " + base64.b64encode(b"ghp-7f3a9:").decode()
    assert str(address) == "http://***@h:1"
    assert redacted("echo ghp-7f3a9") == "echo ***"


def test_all_names_of_loopback_are_recognised_and_no_similar_ones() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.255.0.9", "::1", "0:0:0:0:0:0:0:1", "LocalHost", "localhost.")))
    assert not any(map(is_loopback, ("", "128.0.0.1", "::2", "local", "localhost.example", "127.0.0.1 ", "127.1")))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("etcd://a", RegistryAddress((("a", 2379),), "/svcnode")),
        ("etcd://a:1,b,[::1]:3/", RegistryAddress((("a", 1), ("b", 2379), ("::1", 3)), "/svcnode")),
        ("etcd://10.0.0.1:2379/teams/ledger/", RegistryAddress((("10.0.0.1", 2379),), "/teams/ledger")),
        ("etcd://reader@a", RegistryAddress((("a", 2379),), "/svcnode", "reader")),
        ("etcd://re%40der:p%40%3Assw%2Ford@a/x", RegistryAddress((("a", 2379),), "/x", "re@der", "p@:ssw/ord")),
        ("etcd://reader:pass@word@a", RegistryAddress((("a", 2379),), "/svcnode", "reader", "pass@word")),
    ],
)
def test_a_registry_url_is_parsed(text: str, address: RegistryAddress) -> None:
    assert parse_registry_url(text) == address


def test_the_password_of_a_registry_is_never_shown() -> None:
    address = parse_registry_url("etcd://reader:registry-pass-1@a:1,[::1]:2/x")
    assert str(address) == "etcd://reader:***@a:1,[::1]:2/x"
    assert "registry-pass-1" not in repr(address)
    assert "registry-pass-1" not in redacted("login with registry-pass-1")
    assert parse_registry_url(str(parse_registry_url("etcd://reader@a"))) == parse_registry_url("etcd://reader@a")


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://a:2379", "etcd:///prefix", "etcd://a,,b", "etcd://a,a:2379", "etcd://a:0", "etcd://[::x]"),
        *("etcd://a?tls=true", "etcd://:hidden-pw@a", "etcd://a//b", "etcd://a/b%20c", "etcd://u:hidden-pw@a:x"),
        *("etcd://u:hidden/pw@a", "etcd://u:hidden?pw@a", "http://u:hidden-pw@a"),
    ],
)
def test_an_invalid_registry_url_is_refused_with_an_example_and_without_its_password(text: str) -> None:
    with pytest.raises(InvalidValueError, match="write etcd://host1:2379") as caught:
        parse_registry_url(text)
    assert "hidden" not in str(caught.value)
