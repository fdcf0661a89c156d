"""Access to the operator endpoints depends on the listener, the headers and the token."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from svcnode.api.app import FETCH_METADATA_HEADERS, PROXY_HEADERS, RETAINED_HEADERS
from svcnode.core.address import Address, parse_address
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_REQUIRED, OperatorAuth

if TYPE_CHECKING:
    from svcnode.api.spec import Response

TOKEN = "a-token-of-some-length"
OTHER = "another-token-of-some-length"
HERE = Address(scheme="http", host="127.0.0.1", port=8420)
ELSEWHERE = Address(scheme="http", host="0.0.0.0", port=8420)
UNIX = Address(scheme="unix", path="/run/svcnode.sock")

LOOPBACK = ["127.0.0.1:8420", "127.3.2.1:8420", "[::1]:8420", "localhost:8420", "LOCALHOST:8420", "unix:/run/a.sock"]
OTHERS = ["0.0.0.0:8420", "[::]:8420", "10.0.0.1:8420", "[fe80::1]:8420", "node.example:8420", "127.1:8420"]


def listener(text: str) -> Address:
    return parse_address(text, has_tls=False)


def rejection(address: Address, token: str | None = TOKEN, **headers: str | bytes) -> Response | None:
    """The rejection of a request with these headers; Host is the listener's unless given."""
    given = {"host": "localhost:8420", **headers}
    as_bytes = {
        name.replace("_", "-").encode(): text if isinstance(text, bytes) else text.encode()
        for name, text in given.items()
    }
    return OperatorAuth(address, token, trusts_loopback=True).rejection(as_bytes)


def basic(text: str | bytes) -> str:
    return f"Basic {b64encode(text if isinstance(text, bytes) else text.encode()).decode()}"


@pytest.mark.parametrize("text", LOOPBACK)
def test_on_trusted_loopback_no_token_is_needed(text: str) -> None:
    assert rejection(listener(text), None) is rejection(listener(text), TOKEN) is None


@pytest.mark.parametrize("text", OTHERS)
def test_on_other_addresses_the_token_is_required_and_without_one_every_request_is_rejected(text: str) -> None:
    assert rejection(listener(text)) is TOKEN_REQUIRED
    assert rejection(listener(text), host="127.0.0.1") is TOKEN_REQUIRED
    assert rejection(listener(text), authorization=f"Bearer {TOKEN}") is None
    assert rejection(listener(text), None) is TOKEN_NOT_CONFIGURED
    assert rejection(listener(text), None, authorization=f"Bearer {TOKEN}") is TOKEN_NOT_CONFIGURED


@pytest.mark.parametrize("text", [*LOOPBACK, *OTHERS])
def test_without_trust_in_loopback_the_token_is_required_everywhere(text: str) -> None:
    auth = OperatorAuth(listener(text), TOKEN, trusts_loopback=False)
    for host in (b"localhost:8420", b"127.0.0.1", b""):
        assert auth.rejection({b"host": host}) is TOKEN_REQUIRED
        assert auth.rejection({b"host": host, b"authorization": f"Bearer {OTHER}".encode()}) is TOKEN_REQUIRED
        assert auth.rejection({b"host": host, b"authorization": f"Bearer {TOKEN}".encode()}) is None
        assert auth.rejection({b"host": host, b"authorization": basic(f"me:{TOKEN}").encode()}) is None
    assert not auth.is_open


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8420", "[::1]:8420", "[::1]", "localhost", "LocalHost.:1", ""]
)
def test_a_loopback_host_header_or_none_counts_as_local(host: str) -> None:
    for address in (HERE, UNIX):
        assert rejection(address, host=host) is None
        assert OperatorAuth(address, TOKEN, trusts_loopback=True).rejection({}) is None


@pytest.mark.parametrize(
    "host",
    [
        *("attacker.example:8420", "localhost.attacker.example", "127.0.0.1.attacker.example", "[::2]:8420", "0.0.0.0"),
        *("localhost@attacker.example", "localhost, attacker.example", b"localhost\xff", "a@localhost", "local host"),
        *("localhost:evil", "localhost:80:80", "localhost/", "localhost\\", "127.0.0.1,", ":80"),
        *("[::1", "::1", "::1]", "[::1]x", "[::1]:x", "[127.0.0.1]", "[localhost]", "[]"),
    ],
)
def test_a_host_header_of_another_name_or_an_invalid_one_needs_the_token(host: str | bytes) -> None:
    for address in (HERE, UNIX):
        assert rejection(address, host=host) is TOKEN_REQUIRED
        assert rejection(address, None, host=host) is TOKEN_NOT_CONFIGURED
        assert rejection(address, host=host, authorization=f"Bearer {TOKEN}") is None


@pytest.mark.parametrize("address", [HERE, UNIX], ids=str)
@pytest.mark.parametrize(
    ("site", "mode", "dest", "is_local"),
    [
        ("cross-site", "no-cors", "image", False),
        ("same-site", "cors", "empty", False),
        ("cross-site", "navigate", "iframe", False),
        ("cross-site", "same-origin", "document", False),
        ("", "no-cors", "empty", False),
        ("same-origin, cross-site", "cors", "empty", False),
        ("none", "cors", "empty", True),  # the address bar
        ("same-origin", "cors", "empty", True),  # our page
        ("cross-site", "navigate", "document", True),  # a link on a page of another site
    ],
)
def test_a_cross_site_request_that_is_not_a_link_needs_the_token(
    address: Address, site: str, mode: str, dest: str, is_local: bool
) -> None:
    fetch_headers = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    assert rejection(address, **fetch_headers) is (None if is_local else TOKEN_REQUIRED)
    assert rejection(address, None, **fetch_headers) is (None if is_local else TOKEN_NOT_CONFIGURED)
    assert rejection(address, **fetch_headers, authorization=f"Bearer {TOKEN}") is None
    assert rejection(ELSEWHERE, **fetch_headers) is TOKEN_REQUIRED


@pytest.mark.parametrize("address", [HERE, UNIX], ids=str)
@pytest.mark.parametrize("header", sorted(header.decode() for header in PROXY_HEADERS))
def test_a_request_with_a_proxy_header_needs_the_token(address: Address, header: str) -> None:
    headers = {header.replace("-", "_"): "127.0.0.1"}
    assert rejection(address, None, **headers) is TOKEN_NOT_CONFIGURED
    assert rejection(address, **headers) is TOKEN_REQUIRED
    assert rejection(address, **headers, authorization=f"Bearer {TOKEN}") is None
    auth = OperatorAuth(address, None, trusts_loopback=True)
    assert auth.proxy_sign({b"host": b"localhost:8420", header.encode(): b"secret"}) == f"header {header}"


@pytest.mark.parametrize(
    ("listener", "host"),
    [
        *((HERE, host) for host in (b"127.0.0.1:8420", b"localhost:8420", b"[::1]:8420", b"")),
        (Address(scheme="http", host="::1", port=80), b"[::1]"),  # the default port may be missing
        (Address(scheme="https", host="::1", port=443), b"[::1]"),
        (UNIX, b"localhost"),
        (UNIX, b"localhost:1"),
    ],
)
def test_a_request_to_the_listener_itself_has_no_sign_of_a_proxy(listener: Address, host: bytes) -> None:
    assert OperatorAuth(listener, None, trusts_loopback=True).proxy_sign({b"host": host}) is None


@pytest.mark.parametrize(
    "host", [b"localhost", b"localhost:80", b"node.example:8420", b"\xff", b"localhost:" + b"9" * 5000]
)
def test_a_host_that_is_not_the_listener_is_a_sign_of_a_proxy(host: bytes) -> None:
    assert OperatorAuth(HERE, None, trusts_loopback=True).proxy_sign({b"host": host}) is not None


def test_the_server_retains_the_headers_that_decide() -> None:
    assert PROXY_HEADERS | FETCH_METADATA_HEADERS | {b"authorization", b"host"} <= RETAINED_HEADERS


@pytest.mark.parametrize(
    "given",
    [
        f"Bearer {TOKEN}",
        f"bearer {TOKEN}",
        f"BEARER   {TOKEN} ",
        basic(f":{TOKEN}"),
        basic(f"Jürgen:{TOKEN}").replace("Basic", "basic"),
        basic(b"\xff:" + TOKEN.encode()),
    ],
)
def test_the_token_is_accepted_as_bearer_or_as_basic_password(given: str) -> None:
    assert rejection(ELSEWHERE, authorization=given) is None


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            TOKEN,
            "Bearer ",
            f"Bearer{TOKEN}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN.upper()}",
        ),
        *(f"Bearer {TOKEN} {TOKEN}", f"Bearer {OTHER}, Bearer {TOKEN}", f"Token {TOKEN}", b"Bearer \xff\xfe"),
        *("Basic", f"Basic {TOKEN}", "Basic !!!", "Basic ä", basic(TOKEN), basic(f"{TOKEN}:"), basic(f"a:b:{TOKEN}")),
        f"{basic(f':{OTHER}')}, {basic(f':{TOKEN}')}",
    ],
)
def test_anything_else_is_rejected(given: str | bytes) -> None:
    assert rejection(ELSEWHERE, authorization=given) is TOKEN_REQUIRED


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert rejection(ELSEWHERE, authorization=f"Bearer {TOKEN}") is TOKEN_REQUIRED
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_rejection_names_both_schemes_or_the_key_to_set_and_is_not_cached() -> None:
    assert TOKEN_REQUIRED.code == 401
    schemes = [value for name, value in TOKEN_REQUIRED.headers if name == "WWW-Authenticate"]
    assert schemes == ['Basic realm="svcnode operator", charset="UTF-8"', 'Bearer realm="svcnode operator"']
    assert TOKEN_NOT_CONFIGURED.code == 403
    assert "operator_token" in json.loads(TOKEN_NOT_CONFIGURED.body)["message"]
    assert "WWW-Authenticate" not in dict(TOKEN_NOT_CONFIGURED.headers)
    for response in (TOKEN_REQUIRED, TOKEN_NOT_CONFIGURED):
        assert dict(response.headers)["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("address", "token", "is_open"),
    [(HERE, None, True), (UNIX, TOKEN, True), (ELSEWHERE, TOKEN, False), (ELSEWHERE, None, False)],
)
def test_the_log_has_a_note_where_the_page_is_not_open(address: Address, token: str | None, is_open: bool) -> None:
    auth = OperatorAuth(address, token, trusts_loopback=True)
    assert auth.is_open is is_open
    assert (auth.log_suffix == "") is is_open
    assert TOKEN not in repr(auth)
