"""Svc probes against real nodes, and a node whose services are other nodes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node, Status
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Health, Outcome
from svcnode.core.url import UrlError
from svcnode.probes import make_probe
from svcnode.server.sockets import tls_context
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, reset, unresponsive
from tests.support.http_server import RunningServer, becomes_true, running_server
from tests.support.node_cases import NODE_CASES, ODD_SERVICE_IDS, report, worked_example
from tests.support.processes import Agent
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    NO_DESCRIPTORS,
    READY,
    TLS_UNTRUSTED,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from pathlib import Path

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


# ---- the node as a whole


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


def test_the_health_of_the_node_is_requested(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"svc+http://{backend.address}", headers={"X-Api-Key": "k1"}, bearer="swordfish") == READY
        assert (backend.last_request.method, backend.last_request.target) == ("GET", "/svc/node/health")
        assert backend.last_request.headers["x-api-key"] == "k1"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


@pytest.mark.parametrize(
    ("path", "prefix", "target"),
    [
        ("", "", "/svc/node/health"),
        ("/", "", "/svc/node/health"),
        ("/eigen", "", "/eigen/node/health"),
        ("/eigen/", "", "/eigen/node/health"),
        ("/api/v1/svc", "", "/api/v1/svc/node/health"),
        ("/svc/node", "", "/svc/node/health"),
        ("/svc/node/", "", "/svc/node/health"),
        ("/svc/node/health", "", "/svc/node/health"),
        ("/node", "", "/node/health"),
        ("/my/nodes", "", "/my/nodes/node/health"),
        ("", "/my/node", "/my/node/node/health"),
        ("", "/eigen", "/eigen/node/health"),
        ("/", "/eigen/", "/eigen/node/health"),
        ("", "/", "/node/health"),
    ],
)
def test_the_prefix_is_an_option_or_the_path_of_the_url(
    check: CheckRunner, path: str, prefix: str, target: str
) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"svc+http://{backend.address}{path}", **({"prefix": prefix} if prefix else {})) == READY
        assert backend.last_request.target == target


def test_a_node_is_found_only_under_its_prefix(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name, prefixes=("/eigen",)) as server:
        assert check(f"svc+http://{address(server)}/eigen") == PARTIALLY_HEALTHY
        assert check(f"svc+http://{address(server)}") == NOT_FOUND


# ---- one of its services


def test_the_status_of_a_service_becomes_the_verdict(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name) as server:
        url = f"svc+http://{address(server)}"
        assert check(url, service="db") == READY
        assert check(url, service="storage") == not_ready(ReasonCode.STARTING)
        assert check(url, service="indexer") == UNHEALTHY


def test_an_unknown_service_is_failed(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name) as server:
        verdict = check(f"svc+http://{address(server)}", service="cache")
    assert verdict == NOT_FOUND
    assert "cache" in verdict.reason


def test_a_service_may_have_any_id(check: CheckRunner) -> None:
    case = NODE_CASES["odd ids"]()
    with running_server(case.node, check.loop_name) as server:
        outcomes = {id_: check(f"svc+http://{address(server)}", service=id_).outcome for id_ in ODD_SERVICE_IDS}
    assert outcomes == {id_: OUTCOMES[status] for id_, status in ODD_SERVICE_IDS.items()}


@pytest.mark.parametrize("service_id", ["a/b c%", "ü?#", "%2F"])
def test_an_id_is_one_segment_of_the_path(check: CheckRunner, service_id: str) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"svc+http://{backend.address}", service=service_id) == READY
        assert backend.last_request.target == f"/svc/node/services/{quote(service_id, safe='')}/health"


# ---- other responses


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (201, ReasonCode.UNEXPECTED_RESPONSE),
        (204, ReasonCode.UNEXPECTED_RESPONSE),
        (302, ReasonCode.REDIRECTED),
        (400, ReasonCode.BAD_REQUEST),
        (401, ReasonCode.AUTH_REQUIRED),
        (500, ReasonCode.SERVER_ERROR),
        (502, ReasonCode.SERVER_ERROR),
    ],
)
def test_any_other_response_is_failed(check: CheckRunner, status: int, code: ReasonCode) -> None:
    with HttpBackend(http_response(status, Location="/elsewhere")) as backend:
        assert check(f"svc+http://{backend.address}") == failed(code)
        assert len(backend.requests) == 1


def test_a_node_that_does_not_run_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"svc+http://127.0.0.1:{port}"
        assert check(url) == CONNECTION_REFUSED
        assert check(url, service="db") == CONNECTION_REFUSED
    with Backend(reset) as backend:
        assert check(f"svc+http://{backend.address}") == CONNECTION_CLOSED


def test_an_unresponsive_node_is_failed_at_the_deadline_and_leaves_nothing_open(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.times_out(f"svc+http://{backend.address}", "exchange") == failed(ReasonCode.TIMEOUT)


def test_a_check_without_free_descriptors_is_unknown(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check.without_descriptors(f"svc+http://{backend.address}") == (NO_DESCRIPTORS, READY)


# ---- TLS


def test_a_node_is_checked_with_tls(check: CheckRunner, certificate: Certificate) -> None:
    node, ca = worked_example(), str(certificate.certificate)
    tls = tls_context(certificate.certificate, certificate.key)
    with running_server(node, check.loop_name, tls=tls) as server:
        url = f"svc+https://{address(server)}"
        assert check(url, ca=ca, service="db") == READY
        assert check(url, service="db") == TLS_UNTRUSTED
        assert check(url, ca=ca, service="db", min_cert_days=1) == EXPIRES_SOON
        assert check(url, ca=ca, service="indexer", min_cert_days=1) == UNHEALTHY


# ---- configuration errors


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("svc+http://127.0.0.1/svc", {"prefix": "/eigen"}),
        ("svc+http://127.0.0.1", {"prefix": "eigen"}),
        ("svc+http://127.0.0.1", {"service": ".."}),
    ],
)
def test_an_invalid_option_is_named(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": url, **options})
    assert caught.value.option == next(iter(options))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("svc+http://", "host"),
        ("svc+http://127.0.0.1/svc?x=y", "query"),
        ("svc+http://127.0.0.1/svc/node/services/db", "path"),
    ],
)
def test_an_invalid_url_is_rejected(url: str, part: str) -> None:
    with pytest.raises(UrlError) as caught:
        make_probe(url)
    assert caught.value.part == part


# ---- a fleet


def test_a_node_whose_services_are_nodes_follows_their_health(check: CheckRunner) -> None:
    nodes = {name: Node(name, version="v1.4.2") for name in ("north", "south", "west")}
    handles = {name: node.register("db") for name, node in nodes.items()}
    fleet = Node("fleet", version="v1.4.2")

    async def reaches(health: Health, **statuses: Status) -> None:
        def is_reached() -> bool:
            return fleet.health is health and {service.id: state.status for service, state in fleet} == statuses

        assert await asyncio.to_thread(becomes_true, is_reached)

    async def scenario() -> None:
        async with fleet.probing():
            for handle in handles.values():
                report(handle, Status.UP)
            await reaches(Health.HEALTHY, north=Status.UP, south=Status.UP, west=Status.UP)
            handles["north"].initializing("loading")
            handles["south"].down("broken")
            await reaches(Health.PARTIAL, north=Status.INITIALIZING, south=Status.DOWN, west=Status.UP)
            servers["west"].close()
            await reaches(Health.PARTIAL, north=Status.INITIALIZING, south=Status.DOWN, west=Status.DOWN)
            handles["north"].down("broken")
            await reaches(Health.UNHEALTHY, north=Status.DOWN, south=Status.DOWN, west=Status.DOWN)
            handles["south"].up()
            await reaches(Health.PARTIAL, north=Status.DOWN, south=Status.UP, west=Status.DOWN)

    with ExitStack() as stack:
        servers = {name: stack.enter_context(running_server(node, check.loop_name)) for name, node in nodes.items()}
        for name, server in servers.items():
            probe = f"svc+http://{address(server)}"
            fleet.register(name, probe=probe, interval="50ms", fall=1, rise=1, start_period="0s", stale_after="1m")
        check.run(scenario())


def test_an_agent_shows_the_health_of_a_fleet(tmp_path: Path) -> None:
    nodes = {case: NODE_CASES[case]().node for case in ("all up", "one down", "all down")}
    with ExitStack() as stack:
        servers = {case: stack.enter_context(running_server(node)) for case, node in nodes.items()}
        tables = [
            f'[[services]]\nid = "{case}"\nprobe = "svc+http://{address(server)}"\ninterval = "100ms"\n'
            'fall = 1\nstart_period = "0s"\nstale_after = "1m"\n'
            for case, server in servers.items()
        ]
        agent = stack.enter_context(Agent(tmp_path, "--listen", "127.0.0.1:0", config="\n".join(tables)))
        agent.wait_until(lambda: agent.statuses() == {"all up": "Up", "one down": "Initializing", "all down": "Down"})
        assert agent.health() == 206
