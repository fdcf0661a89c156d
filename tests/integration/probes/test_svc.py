"""Svc probes against real nodes, and a node whose services are other nodes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from svcnode import Status
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.core.url import Url
from svcnode.probes.svc import SvcProbe
from svcnode.server.sockets import tls_context
from tests.support.backends import HttpBackend, ReceivedRequest, http_response
from tests.support.http_server import RunningServer, running_server
from tests.support.node_cases import NODE_CASES, ODD_SERVICE_IDS, worked_example
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, failed, not_ready

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

PARTIALLY_HEALTHY = not_ready(ReasonCode.PARTIALLY_HEALTHY)
UNHEALTHY = failed(ReasonCode.UNHEALTHY)
NOT_FOUND = failed(ReasonCode.NOT_FOUND)
OUTCOMES = {Status.UP: Outcome.READY, Status.INITIALIZING: Outcome.NOT_READY, Status.DOWN: Outcome.FAILED}


def address(server: RunningServer) -> str:
    host, port = server.address
    return f"{host}:{port}"


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("all up", READY),
        ("no services", READY),
        ("one down", PARTIALLY_HEALTHY),
        ("starting", PARTIALLY_HEALTHY),
        ("all down", UNHEALTHY),
        ("draining", UNHEALTHY),
        ("critical down", UNHEALTHY),
    ],
)
def test_the_health_of_a_node_becomes_the_verdict(check: CheckRunner, case: str, verdict: Verdict) -> None:
    with running_server(NODE_CASES[case]().node, check.loop_name) as server:
        assert check(f"svc+http://{address(server)}") == verdict


@pytest.mark.parametrize(
    ("path", "prefix", "target"),
    [
        ("", "", "/svc/node/health"),
        ("/eigen/", "", "/eigen/node/health"),
        ("/api/v1/svc", "", "/api/v1/svc/node/health"),
        ("/svc/node", "", "/svc/node/health"),
        ("/svc/node/health", "", "/svc/node/health"),
        ("/node", "", "/node/health"),
        ("/my/nodes", "", "/my/nodes/node/health"),
        ("", "/my/node", "/my/node/node/health"),
        ("/", "/eigen/", "/eigen/node/health"),
        ("", "/", "/node/health"),
    ],
)
def test_the_prefix_is_an_option_or_the_path_of_the_url(
    check: CheckRunner, path: str, prefix: str, target: str
) -> None:
    options = {"headers": {"X-Api-Key": "k1"}, "bearer": "swordfish"} | ({"prefix": prefix} if prefix else {})
    with HttpBackend(http_response(200)) as backend:
        assert check(f"svc+http://{backend.address}{path}", **options) == READY
        assert (backend.last_request.method, backend.last_request.target) == ("GET", target)
        assert backend.last_request.headers["x-api-key"] == "k1"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


def test_a_service_may_have_any_id(check: CheckRunner) -> None:
    case = NODE_CASES["odd ids"]()
    with running_server(case.node, check.loop_name) as server:
        outcomes = {id_: check(f"svc+http://{address(server)}", service=id_).outcome for id_ in ODD_SERVICE_IDS}
        assert check(f"svc+http://{address(server)}", service="cache") == NOT_FOUND
    assert outcomes == {id_: OUTCOMES[status] for id_, status in ODD_SERVICE_IDS.items()}


def test_a_node_is_checked_with_tls(check: CheckRunner, certificate: Certificate) -> None:
    node, ca = worked_example(), str(certificate.certificate)
    tls = tls_context(certificate.certificate, certificate.key)
    with running_server(node, check.loop_name, tls=tls) as server:
        url = f"svc+https://{address(server)}"
        assert check(url, ca=ca, service="db") == READY
        assert check(url, service="db") == TLS_UNTRUSTED
        assert check(url, ca=ca, service="db", min_cert_days=1) == EXPIRES_SOON
        assert check(url, ca=ca, service="indexer", min_cert_days=1) == UNHEALTHY


def node_answer(health: int, services: bytes) -> HttpBackend:
    """A node with this health and this list of services."""
    listing = http_response(200, services, Content_Type="application/json")
    return HttpBackend(lambda request: listing if request.target.endswith("/services") else http_response(health))


LISTED = [
    (206, {"ledger": "Down", "api": "Down", "web": "Up"}, "partially healthy, 2 Down: ledger, api: "),
    (503, dict.fromkeys("abcde", "Down"), "unhealthy, 5 Down: a, b, c and 2 more: "),
    (206, {"ledger": "Initializing", "web": "Up"}, "partially healthy, 1 Initializing: ledger: "),
    (503, {"ledger": "Up"}, "unhealthy: "),
    (503, {"x" * 99: "Down"}, f"unhealthy, 1 Down: {'x' * 39}…: "),
    (503, {"a\x1bb": "Down"}, "unhealthy, 1 Down: a\\x1bb: "),
]


@pytest.mark.parametrize(("health", "statuses", "text"), LISTED)
def test_the_reason_names_the_services_of_a_node_that_are_down(
    check: CheckRunner, health: int, statuses: dict[str, str], text: str
) -> None:
    services = [{"id": name, "status": status} for name, status in statuses.items()]
    with node_answer(health, json.dumps({"services": services}).encode()) as backend:
        verdict = check(f"svc+http://{backend.address}")
    assert verdict.reason.startswith(text)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"services": 5}', b'{"services": [5, {"status": "Down"}, {"id": 5, "status": "Down"}]}'],
)
def test_a_list_of_another_form_names_nothing(check: CheckRunner, body: bytes) -> None:
    with node_answer(503, body) as backend:
        verdict = check(f"svc+http://{backend.address}")
    assert (verdict == UNHEALTHY, verdict.reason.startswith("unhealthy: ")) == (True, True)


def test_a_node_that_does_not_answer_the_list_keeps_its_verdict_and_is_not_asked_at_once_again() -> None:
    asked = []

    async def check_twice(url: str) -> list[Verdict]:
        probe = SvcProbe(Url.parse(url))
        return [await probe.check(), await probe.check()]

    def answer(request: ReceivedRequest) -> bytes:
        asked.append(request.target)
        return b"" if request.target.endswith("/services") else http_response(206)

    with HttpBackend(answer) as backend:
        verdicts = asyncio.run(check_twice(f"svc+http://{backend.address}"))
    assert verdicts == [PARTIALLY_HEALTHY, PARTIALLY_HEALTHY]
    assert asked == ["/svc/node/health", "/svc/node/services", "/svc/node/health"]
