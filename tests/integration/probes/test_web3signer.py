"""web3signer+http:// against scripted servers with the documents of Web3Signer.

Its openapi-specs describe /upcheck, /healthcheck and publicKeys; HealthCheckResultUtil.java of its acceptance tests has
the document of the health checks. A check of keys is DOWN if some could not be loaded (Eth2Runner.java).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner

KEY = "0x93247f2209abcacf57b75a51dafae777f9dd38bc7053d1af526f220a7489a6d3a2753e5f3e8b1cfe39b56f43611df74a"
OTHER_KEY = "0x" + "b2" * 48
NOT_SUPPORTED = unknown(ReasonCode.NOT_SUPPORTED)
NO_KEYS = not_ready(ReasonCode.NOT_FOUND)
UNEXPECTED = failed(ReasonCode.UNEXPECTED_RESPONSE)


def health(keys: str = "UP", database: str = "UP") -> bytes:
    loading = {"id": "config-files-loading", "status": keys, "data": {"keys-loaded": 4, "error-count": 0}}
    checks = [
        {"id": "default-check", "status": "UP"},
        {"id": "keys-check", "status": keys, "checks": [loading]},
        {"id": "slashing-protection-db-health-check", "status": database},
    ]
    status = "DOWN" if "DOWN" in (keys, database) else "UP"
    document = {"status": status, "checks": checks, "outcome": status}
    return http_response(200 if status == "UP" else 503, json.dumps(document))


def signer(**pages: bytes) -> Callable[[ReceivedRequest], bytes]:
    """By the last part of the path, or by `eth1`."""
    found = {
        "/upcheck": http_response(200, "OK"),
        "/healthcheck": pages.get("healthcheck", health()),
        "/api/v1/eth2/publicKeys": pages.get("keys", http_response(200, json.dumps([KEY]))),
        "/api/v1/eth1/publicKeys": pages.get("eth1", http_response(404)),
        **({"/upcheck": pages["upcheck"]} if "upcheck" in pages else {}),
    }
    return lambda request: found[request.target.removeprefix("/signer")]


def run(check: CheckRunner, options: dict[str, Any] | None = None, **pages: bytes) -> Verdict:
    with KeepAliveBackend(signer(**pages)) as backend:
        return check(f"web3signer+http://{backend.address}/signer/", **(options or {}))


def contradiction(status: str, outcome: str, check: str) -> bytes:
    checks = [{"id": "db", "status": check}]
    return http_response(200, json.dumps({"status": status, "outcome": outcome, "checks": checks}))


def claiming_up(*checks: Any) -> bytes:
    return http_response(200, json.dumps({"status": "UP", "checks": checks}))


@pytest.mark.parametrize(
    ("pages", "options", "expected"),
    [
        ({}, {}, READY),
        ({}, {"keys": [KEY.upper().replace("0X", "0x")]}, READY),
        ({}, {"keys": [KEY, OTHER_KEY]}, failed(ReasonCode.NOT_FOUND)),
        ({"keys": http_response(200, "[]")}, {}, NO_KEYS),
        ({"keys": http_response(404), "eth1": http_response(200, f'["{OTHER_KEY}"]')}, {}, READY),
        ({"keys": http_response(404), "eth1": http_response(200, "[]")}, {}, NO_KEYS),
        ({"keys": http_response(200, json.dumps([OTHER_KEY] * 20_000))}, {}, READY),
        ({"keys": http_response(200, json.dumps([OTHER_KEY] * 20_000))}, {"keys": [KEY]}, failed(ReasonCode.NOT_FOUND)),
        ({"healthcheck": health(keys="DOWN")}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"healthcheck": health(database="DOWN")}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"healthcheck": contradiction("UP", "UP", "DOWN")}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"healthcheck": contradiction("UP", "DOWN", "UP")}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"healthcheck": contradiction("DOWN", "UP", "UP")}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"healthcheck": http_response(503, '{"status": "DOWN", "checks": []}')}, {}, failed(ReasonCode.UNHEALTHY)),
        *(
            ({"healthcheck": claiming_up(one)}, {}, failed(ReasonCode.UNHEALTHY))
            for one in (
                {"id": "keys", "status": "DOWN", "checks": []},
                {"id": "keys", "status": "DOWN", "checks": [{"id": "files", "status": "UP"}]},
                {"status": "DOWN"},
                {"status": None},
                "DOWN",
                {"checks": {"keys": "DOWN"}},
            )
        ),
        ({"healthcheck": http_response(404)}, {}, NOT_SUPPORTED),
        ({"keys": http_response(404)}, {}, NOT_SUPPORTED),
        ({"upcheck": http_response(404)}, {}, failed(ReasonCode.NOT_FOUND)),
        ({"upcheck": http_response(500)}, {}, failed(ReasonCode.SERVER_ERROR)),
        ({"upcheck": http_response(403)}, {}, failed(ReasonCode.PERMISSION_DENIED)),  # a host that is not allowed
        ({"healthcheck": http_response(200, "{}")}, {}, UNEXPECTED),
        ({"healthcheck": http_response(200, "OK")}, {}, UNEXPECTED),
        ({"keys": http_response(200, "{}")}, {}, UNEXPECTED),
        ({"keys": http_response(200, "[1]")}, {}, UNEXPECTED),
    ],
)
def test_a_signer_is_ready_if_it_is_healthy_and_has_its_keys(
    check: CheckRunner, pages: dict[str, bytes], options: dict[str, Any], expected: object
) -> None:
    assert run(check, options, **pages) == expected


def test_the_reason_names_what_is_wrong(check: CheckRunner) -> None:
    assert "slashing-protection-db-health-check" in run(check, healthcheck=health(database="DOWN")).reason
    reason = run(check, healthcheck=health(keys="DOWN")).reason
    assert "config-files-loading" in reason
    assert "default-check" not in reason
    assert OTHER_KEY[:14] in run(check, {"keys": [OTHER_KEY]}).reason
