"""mevboost+http:// against scripted servers that answer as MEV-Boost and relays do.

`handleStatus` of MEV-Boost's server/service.go: 200 and `{}`, or 503 and `{"code":503,"message":"all relays are
unavailable"}` if it runs with -relay-check. Relays have the same path (`GetURI` in server/types drops the public key).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, unresponsive
from tests.support.probe_assertions import KeepAliveBackend
from tests.support.verdicts import READY, failed, not_ready

if TYPE_CHECKING:
    from tests.support.check_runner import CheckRunner

OK = http_response(200, "{}", X_MEVBoost_Version="1.9")
ALL_UNAVAILABLE = http_response(503, '{"code":503,"message":"all relays are unavailable"}')
OFFLINE = not_ready(ReasonCode.UPSTREAM_OFFLINE)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (OK, READY),
        (http_response(200), READY),  # the Builder API asks for no body
        (http_response(200, "<html>It works!</html>"), failed(ReasonCode.UNEXPECTED_RESPONSE)),
        (ALL_UNAVAILABLE, OFFLINE),
        (http_response(200, '{"code":503,"message":"all relays are unavailable"}'), OFFLINE),
        (http_response(200, '{"code":400,"message":"bad request"}'), failed(ReasonCode.BAD_REQUEST)),
        (http_response(503, "<html>no backend</html>"), failed(ReasonCode.SERVER_ERROR)),
        (http_response(404), failed(ReasonCode.NOT_FOUND)),
        (http_response(204), failed(ReasonCode.UNEXPECTED_RESPONSE)),
        (http_response(302), failed(ReasonCode.REDIRECTED)),
    ],
)
def test_the_status_of_the_server_is_believed(check: CheckRunner, response: bytes, expected: object) -> None:
    with KeepAliveBackend(response) as backend:
        assert check(f"mevboost+http://{backend.address}/boost/") == expected
        assert {request.target for request in backend.requests} == {"/boost/eth/v1/builder/status"}


def test_relays_are_asked_without_their_keys_and_without_the_login_of_the_server(check: CheckRunner) -> None:
    with KeepAliveBackend(OK) as boost, HttpBackend(OK) as relay:
        key = "0x" + "ac" * 48
        options = {"relays": [f"http://{key}@{relay.address}/"], "bearer": "swordfish"}
        assert check(f"mevboost+http://{boost.address}", **options) == READY
        assert relay.last_request.target == "/eth/v1/builder/status"
        assert "authorization" not in relay.last_request.headers


def test_enough_relays_must_be_available(check: CheckRunner) -> None:
    with ExitStack() as stack:
        boost = stack.enter_context(KeepAliveBackend(OK))
        good, bad = stack.enter_context(HttpBackend(OK)), stack.enter_context(HttpBackend(http_response(502)))
        port = stack.enter_context(closed_port())
        url, relays = f"mevboost+http://{boost.address}", [f"http://{good.address}", f"http://{bad.address}"]
        verdict = check(url, relays=relays)
        assert (verdict.outcome, bad.address in verdict.reason) == (Outcome.READY, True)
        assert check(url, relays=relays, min_relays=2) == OFFLINE
        claiming = stack.enter_context(HttpBackend(http_response(200, '{"code":500,"message":"no database"}')))
        assert check(url, relays=[f"http://{claiming.address}"]) == OFFLINE
        assert check(url, relays=[f"http://127.0.0.1:{port}", f"http://{bad.address}"]) == OFFLINE


def test_a_relay_that_hangs_leaves_time_for_the_verdict(check: CheckRunner) -> None:
    with KeepAliveBackend(OK) as boost, Backend(unresponsive) as hanging, HttpBackend(OK) as good:
        url, relays = f"mevboost+http://{boost.address}", [f"http://{hanging.address}", f"http://{good.address}"]
        assert check.with_timeout(1.0, url, relays=relays).outcome is Outcome.READY
        assert check.with_timeout(1.0, url, relays=relays, min_relays=2) == OFFLINE
