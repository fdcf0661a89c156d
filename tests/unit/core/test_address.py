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
def test_an_address_is_read_as_people_write_it(text: str, address: Address) -> None:
    assert parse_address(text, has_tls=False) == address


@pytest.mark.parametrize(
    ("text", "scheme"),
    [("127.0.0.1:1", "https"), ("https://127.0.0.1:1", "https"), ("http://127.0.0.1:1", "http"), ("unix:/a", "unix")],
)
def test_with_a_certificate_an_address_speaks_tls_unless_it_says_otherwise(text: str, scheme: str) -> None:
    assert parse_address(text, has_tls=True).scheme == scheme


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8420", 'write "127.0.0.1:8420" for this machine alone or "0.0.0.0:8420" for everyone'),
        ("::1:8420", 'write an IPv6 address in brackets, such as "[::1]:8420"'),
        ("fe80::1", 'write an IPv6 address in brackets, such as "[::1]:8420"'),
        ("ftp://127.0.0.1:1", 'write "127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'),
        ("localhost", 'write "127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'),
        (":8420", 'write "127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'),
        ("", 'write "127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'),
        ("127.0.0.1:", "is not an address"),
        ("127.0.0.1:80 ", "is not an address"),
        ("127.0.0.1:٨٠", "is not an address"),
        ("127.0.0.1:-1", "is not an address"),
        ("127.0.0.1:123456", "is not an address"),
        ("127.0.0.1:80/svc", "is not an address"),
        ("127.0.0.1:65536", "a port is at most 65535"),
        ("[127.0.0.1]:80", "what stands in brackets is not an IPv6 address"),
        ("[]:80", "is not an address"),
        ("https://127.0.0.1:1", r"needs a certificate: set certificate and key in [server.tls]"),
        ("unix:", 'a Unix socket needs a path, such as "unix:/run/svcnode.sock"'),
        ("unix:/a\0b", "the path of a Unix socket must not hold control characters"),
        ("unix:/a\n", "the path of a Unix socket must not hold control characters"),
    ],
)
def test_what_is_no_address_is_refused_with_what_to_write_instead(text: str, reason: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        parse_address(text, has_tls=False)
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["http://127.0.0.1:8420", "https://[::1]:8420", "http://localhost:0", "unix:/a b"])
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(parse_address(text, has_tls=True)) == text


@given(st.text(max_size=20) | st.from_regex(r"(https?://)?(\[.*\]|.*):[0-9]{1,6}/?", fullmatch=True))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text, has_tls=True)
    except InvalidValueError:
        return
    assert parse_address(str(address), has_tls=True) == address


def test_two_addresses_share_a_place_whatever_is_spoken_there() -> None:
    plain = Address(scheme="http", host="127.0.0.1", port=1)
    assert plain.bind_key == Address(scheme="https", host="127.0.0.1", port=1).bind_key
    assert plain.bind_key != Address(scheme="http", host="127.0.0.1", port=2).bind_key
    assert plain.bind_key != Address(scheme="http", host="127.0.0.2", port=1).bind_key
    assert Address(scheme="unix", path="/a").bind_key != Address(scheme="unix", path="/b").bind_key
