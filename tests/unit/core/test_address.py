from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.address import Address, parse_address
from svcnode.core.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8420", Address(scheme="http", host="127.0.0.1", port=8420)),
        ("http://127.0.0.1:8420", Address(scheme="http", host="127.0.0.1", port=8420)),
        ("http://127.0.0.1:8420/", Address(scheme="http", host="127.0.0.1", port=8420)),
        ("localhost:0", Address(scheme="http", host="localhost", port=0)),
        ("0.0.0.0:65535", Address(scheme="http", host="0.0.0.0", port=65535)),
        ("[::1]:8420", Address(scheme="http", host="::1", port=8420)),
        ("[0:0:0:0:0:0:0:1]:8420", Address(scheme="http", host="::1", port=8420)),
        ("[FE80::1%eth0]:80", Address(scheme="http", host="fe80::1%eth0", port=80)),
        ("unix:/run/svcnode.sock", Address(scheme="unix", path="/run/svcnode.sock")),
        ("unix:here.sock", Address(scheme="unix", path="here.sock")),
    ],
)
def test_an_address_is_parsed(text: str, address: Address) -> None:
    assert parse_address(text, has_tls=False) == address


@pytest.mark.parametrize(
    ("text", "scheme"),
    [("127.0.0.1:1", "https"), ("https://127.0.0.1:1", "https"), ("http://127.0.0.1:1", "http"), ("unix:/a", "unix")],
)
def test_with_a_certificate_an_address_uses_tls_unless_its_scheme_is_http(text: str, scheme: str) -> None:
    assert parse_address(text, has_tls=True).scheme == scheme


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8420", '"127.0.0.1:8420"'),
        ("::1:8420", '"[::1]:8420"'),
        ("fe80::1", '"[::1]:8420"'),
        ("ftp://127.0.0.1:1", '"unix:/run/svcnode.sock"'),
        ("localhost", '"unix:/run/svcnode.sock"'),
        (":8420", '"unix:/run/svcnode.sock"'),
        ("", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:80 ", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:٨٠", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:-1", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:123456", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:80/svc", '"unix:/run/svcnode.sock"'),
        ("[]:80", '"unix:/run/svcnode.sock"'),
        ("127.0.0.1:65536", "65535"),
        ("[127.0.0.1]:80", "IPv6"),
        ("https://127.0.0.1:1", "[server.tls]"),
        ("unix:", '"unix:/run/svcnode.sock"'),
        ("unix:/a\0b", "control characters"),
        ("unix:/a\n", "control characters"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_address(text, has_tls=False)
    assert hint in str(caught.value)


@pytest.mark.parametrize("text", ["http://127.0.0.1:8420", "https://[::1]:8420", "http://localhost:0", "unix:/a b"])
def test_the_text_of_an_address_is_the_parsed_text(text: str) -> None:
    assert str(parse_address(text, has_tls=True)) == text


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
