"""Which origins may read responses."""

from __future__ import annotations

import pytest
from tests.support.nodes import make_node

from svcnode.api import routing
from svcnode.api.cors import parse_origins
from svcnode.api.spec import Request
from svcnode.core.errors import InvalidValueError

PAGE = "https://status.example.com"
ALLOWED = ("Access-Control-Allow-Origin", PAGE)
VARY = ("Vary", "Origin")


def test_every_origin_gets_the_same_header_with_a_star() -> None:
    policy = parse_origins(["*"])
    for origin in (b"", PAGE.encode(), b"null"):
        assert policy.headers_for(origin) == (("Access-Control-Allow-Origin", "*"),)


def test_only_a_listed_origin_is_allowed_and_caches_must_distinguish_it() -> None:
    policy = parse_origins([PAGE, "http://localhost:3000"])
    assert policy.headers_for(PAGE.encode()) == (ALLOWED, VARY)
    for origin in (b"", b"null", b"https://other.example.com", b"https://status.example.com, x", b"\xff"):
        assert policy.headers_for(origin) == (VARY,)


@pytest.mark.parametrize(
    "origins",
    [
        *([], ["*", PAGE], [f"{PAGE}/"], ["status.example.com"], ["HTTPS://status.example.com"], ["null"]),
        *(["https://*.example.com"], [f"{PAGE}:443"], ["http://localhost:80"], [f"{PAGE}:0443"], [f"{PAGE}:99999"]),
        [f"{PAGE}\r\nX: y"],
    ],
)
def test_an_invalid_origin_is_rejected(origins: list[str]) -> None:
    with pytest.raises(InvalidValueError):
        parse_origins(origins)


@pytest.mark.parametrize(
    ("request_", "has_header"),
    [
        (Request("GET", b"/svc/node"), True),
        (Request("GET", b"/svc/node", b"version=v9"), True),
        (Request("POST", b"/svc/node/services/none/health"), True),
        (Request("GET", b"/svc/other"), False),
        (Request("GET", b"/readyz"), False),
    ],
)
def test_only_the_four_endpoints_have_the_headers_also_with_an_error(request_: Request, has_header: bool) -> None:
    response = routing.route(request_, ("/svc",), (VARY,))(make_node("n", version="v1"))
    assert (VARY in response.headers) is has_header
