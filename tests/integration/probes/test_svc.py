"""Svc probes against real nodes, and a node whose services are other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode import Status
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.server.sockets import tls_context
from tests.support.backends import HttpBackend, http_response
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
