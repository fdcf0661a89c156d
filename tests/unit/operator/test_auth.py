"""Who may come in: decided by the listener, the headers and the token, and by nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from svcnode.api.app import FETCH_METADATA_HEADERS, PROXY_HEADERS, RETAINED_HEADERS
from svcnode.core.address import Address, parse_address
from svcnode.operator.auth import TOKEN_NOT_CONFIGURED, TOKEN_REQUIRED, OperatorAuth, is_loopback

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


def asked(address: Address, token: str | None = TOKEN, **headers: str | bytes) -> Response | None:
    """What is said to a visitor with these headers, whose Host is the listener's own unless it is among them."""
    given = {"host": "localhost:8420", **headers}
    as_bytes = {
        name.replace("_", "-").encode(): text if isinstance(text, bytes) else text.encode()
        for name, text in given.items()
    }
    return OperatorAuth(address, token).rejection(as_bytes)


def basic(text: str | bytes) -> str:
    return f"Basic {b64encode(text if isinstance(text, bytes) else text.encode()).decode()}"


# ---- by the address


@pytest.mark.parametrize("text", LOOPBACK)
@pytest.mark.parametrize("token", [None, TOKEN])
def test_on_loopback_anybody_may_come_in(text: str, token: str | None) -> None:
    assert asked(listener(text), token) is None


@pytest.mark.parametrize("text", OTHERS)
def test_on_any_other_address_nobody_may_come_in_where_no_token_is_set(text: str) -> None:
    assert asked(listener(text), None) is TOKEN_NOT_CONFIGURED
    assert asked(listener(text), None, authorization=f"Bearer {TOKEN}") is TOKEN_NOT_CONFIGURED


@pytest.mark.parametrize("text", OTHERS)
def test_on_any_other_address_the_token_is_asked_for(text: str) -> None:
    assert asked(listener(text)) is TOKEN_REQUIRED
    assert asked(listener(text), authorization=f"Bearer {TOKEN}") is None


def test_the_host_that_a_visitor_names_opens_no_other_address() -> None:
    assert asked(ELSEWHERE, host="127.0.0.1") is TOKEN_REQUIRED


@pytest.mark.parametrize("text", [*LOOPBACK, *OTHERS])
def test_where_loopback_is_not_trusted_the_token_is_asked_for_everywhere(text: str) -> None:
    access = OperatorAuth(listener(text), TOKEN, trusts_loopback=False)
    for host in (b"localhost:8420", b"127.0.0.1", b""):
        assert access.rejection({b"host": host}) is TOKEN_REQUIRED
        assert access.rejection({b"host": host, b"authorization": f"Bearer {OTHER}".encode()}) is TOKEN_REQUIRED
        assert access.rejection({b"host": host, b"authorization": f"Bearer {TOKEN}".encode()}) is None
        assert access.rejection({b"host": host, b"authorization": basic(f"me:{TOKEN}").encode()}) is None
    assert access.log_suffix == ", and asks for the token"


# ---- who is not from here, though the listener is


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8420", "[::1]:8420", "[::1]", "localhost", "LocalHost.:1"])
def test_a_visitor_who_asks_for_this_machine_is_from_here(host: str) -> None:
    assert asked(HERE, host=host) is None


@pytest.mark.parametrize("address", [HERE, UNIX], ids=str)
def test_a_visitor_who_names_no_host_is_no_browser_and_from_here(address: Address) -> None:
    assert OperatorAuth(address, TOKEN).rejection({}) is None
    assert asked(address, host="") is None


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "attacker.example:8420",
        "localhost.attacker.example",
        "127.0.0.1.attacker.example",
        "localhost@attacker.example",
        "[::2]:8420",
        "10.0.0.1",
        "0.0.0.0",
        b"\xff",
        b"localhost\xff",
        "localhost, attacker.example",
    ],
)
def test_a_page_whose_name_resolves_to_this_machine_is_from_elsewhere(host: str | bytes) -> None:
    for address in (HERE, UNIX):
        assert asked(address, host=host) is TOKEN_REQUIRED
        assert asked(address, None, host=host) is TOKEN_NOT_CONFIGURED
        assert asked(address, host=host, authorization=f"Bearer {TOKEN}") is None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost:evil",
            "localhost:80:80",
            "localhost:80x",
            "localhost/",
            "localhost\\",
            "a@localhost",
            "local host",
        ),
        *(
            "[::1",
            "::1",
            "::1]",
            "[::1]x",
            "[::1]:x",
            "[127.0.0.1]",
            "[localhost]",
            "[]",
            "[",
            ":",
            ":80",
            "127.0.0.1,",
        ),
    ],
)
def test_a_host_that_is_none_is_not_this_machine(host: str) -> None:
    assert asked(HERE, host=host) is TOKEN_REQUIRED
    assert asked(UNIX, host=host) is TOKEN_REQUIRED


# ---- what a browser asks for on behalf of other pages


@pytest.mark.parametrize("address", [HERE, UNIX], ids=str)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "same-origin, cross-site", "something-new"])
@pytest.mark.parametrize(
    ("mode", "dest"),
    [
        ("no-cors", "image"),
        ("no-cors", "empty"),
        ("cors", "empty"),
        ("navigate", "iframe"),
        ("same-origin", "document"),
    ],
)
def test_what_a_page_of_another_site_asks_for_is_asked_from_elsewhere(
    address: Address, site: str, mode: str, dest: str
) -> None:
    signs = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    assert asked(address, **signs) is TOKEN_REQUIRED
    assert asked(address, None, **signs) is TOKEN_NOT_CONFIGURED
    assert asked(address, **signs, authorization=f"Bearer {TOKEN}") is None


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_what_our_own_page_asks_for_or_a_person_types_in_is_asked_from_here(site: str) -> None:
    assert asked(HERE, sec_fetch_site=site, sec_fetch_mode="cors", sec_fetch_dest="empty") is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_on_a_page_of_another_site_may_be_followed(site: str) -> None:
    assert asked(HERE, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") is None
    assert asked(ELSEWHERE, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") is TOKEN_REQUIRED


@pytest.mark.parametrize("address", [HERE, UNIX], ids=str)
@pytest.mark.parametrize("sign", sorted(sign.decode() for sign in PROXY_HEADERS))
def test_who_comes_through_a_proxy_is_from_elsewhere(address: Address, sign: str) -> None:
    headers = {sign.replace("-", "_"): "127.0.0.1"}
    assert asked(address, None, **headers) is TOKEN_NOT_CONFIGURED
    assert asked(address, **headers) is TOKEN_REQUIRED
    assert asked(address, **headers, authorization=f"Bearer {TOKEN}") is None


def test_what_is_looked_at_is_kept_of_a_request() -> None:
    assert PROXY_HEADERS | FETCH_METADATA_HEADERS | {b"authorization", b"host"} <= RETAINED_HEADERS


# ---- by the token


@pytest.mark.parametrize(
    "given",
    [
        f"Bearer {TOKEN}",
        f"bearer {TOKEN}",
        f"BEARER   {TOKEN} ",
        basic(f":{TOKEN}"),
        basic(f"anybody:{TOKEN}"),
        basic(f"anybody:{TOKEN}").replace("Basic", "basic"),
        basic(f"Jürgen:{TOKEN}"),
        basic(b"\xff:" + TOKEN.encode()),
    ],
)
def test_the_token_is_taken_as_bearer_or_as_a_password(given: str) -> None:
    assert asked(ELSEWHERE, authorization=given) is None


@pytest.mark.parametrize(
    "given",
    [
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN}, Bearer {TOKEN}",
        f"Bearer {OTHER}, Bearer {TOKEN}",
        f"{basic(f':{OTHER}')}, {basic(f':{TOKEN}')}",
        f"Token {TOKEN}",
        f"Digest {TOKEN}",
        "Basic",
        f"Basic {TOKEN}",
        "Basic !!!",
        "Basic ä",
        basic(TOKEN),
        basic(f"{TOKEN}:"),
        basic(f"a:b:{TOKEN}"),
        basic(""),
        b"Bearer \xff\xfe",
    ],
)
def test_anything_else_is_no_token(given: str | bytes) -> None:
    assert asked(ELSEWHERE, authorization=given) is TOKEN_REQUIRED


def test_the_token_is_compared_without_telling_how_much_of_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr("hmac.compare_digest", compare)
    assert asked(ELSEWHERE, authorization=f"Bearer {TOKEN}") is TOKEN_REQUIRED
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


# ---- what is said


def test_who_lacks_the_token_is_told_both_ways_to_give_it() -> None:
    assert TOKEN_REQUIRED.code == 401
    ways = [value for name, value in TOKEN_REQUIRED.headers if name == "WWW-Authenticate"]
    assert ways == ['Basic realm="svcnode operator", charset="UTF-8"', 'Bearer realm="svcnode operator"']


def test_where_no_token_is_set_the_way_to_mend_that_is_told() -> None:
    assert TOKEN_NOT_CONFIGURED.code == 403
    assert "set operator_token in [security]" in json.loads(TOKEN_NOT_CONFIGURED.body)["message"]
    assert "WWW-Authenticate" not in dict(TOKEN_NOT_CONFIGURED.headers)


@pytest.mark.parametrize("refusal", [TOKEN_REQUIRED, TOKEN_NOT_CONFIGURED])
def test_a_refusal_is_kept_by_nobody(refusal: Response) -> None:
    assert dict(refusal.headers)["Cache-Control"] == "no-store"


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(OperatorAuth(ELSEWHERE, TOKEN))


@pytest.mark.parametrize(
    ("address", "token", "spoken"),
    [
        (HERE, None, ""),
        (UNIX, TOKEN, ""),
        (ELSEWHERE, TOKEN, ", and asks for the token"),
        (
            ELSEWHERE,
            None,
            ", but not served there: set operator_token in [security] to see it, or operator = false in [server]",
        ),
    ],
)
def test_the_log_says_what_is_asked_of_visitors(address: Address, token: str | None, spoken: str) -> None:
    assert OperatorAuth(address, token).log_suffix == spoken


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "0:0:0:0:0:0:0:1", "localhost", "localhost."])
def test_loopback_is_known_by_all_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "128.0.0.1", "::2", "local", "localhost.example", "127.0.0.1 ", "127.1"])
def test_what_only_looks_like_loopback_is_not(host: str) -> None:
    assert not is_loopback(host)
