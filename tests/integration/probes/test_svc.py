"""svc+http:// against real nodes, and a node that looks at nothing but other nodes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node, Status
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Health, Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.server.sockets import tls_context
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, reset, unresponsive
from tests.support.http_server import RunningServer, becomes_true, running_server
from tests.support.node_cases import NODE_CASES, ODD_SERVICE_IDS, report, worked_example
from tests.support.processes import Agent

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
OUTCOMES = {Status.UP: Outcome.READY, Status.INITIALIZING: Outcome.NOT_READY, Status.DOWN: Outcome.FAILED}


def address(server: RunningServer) -> str:
    host, port = server.address
    return f"{host}:{port}"


# ---- the node as a whole


@pytest.mark.parametrize(
    ("world", "verdict"),
    [
        ("all up", READY),
        ("no services", READY),
        ("one down", Verdict.not_ready("partially healthy: {url}")),
        ("starting", Verdict.not_ready("partially healthy: {url}")),
        ("all down", Verdict.failed("unhealthy: {url}")),
        ("draining", Verdict.failed("unhealthy: {url}")),
        ("critical down", Verdict.failed("unhealthy: {url}")),
    ],
)
def test_the_health_of_a_node_is_its_verdict(check: CheckRunner, world: str, verdict: Verdict) -> None:
    with running_server(NODE_CASES[world]().node, check.loop_name) as server:
        url = f"svc+http://{address(server)}"
        assert check(url) == Verdict(verdict.outcome, verdict.reason.format(url=url))


def test_it_asks_for_the_health_of_the_node(check: CheckRunner) -> None:
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


def test_a_node_under_another_prefix_is_found_there_and_nowhere_else(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name, prefixes=("/eigen",)) as server:
        assert check(f"svc+http://{address(server)}/eigen").outcome is Outcome.NOT_READY
        assert check(f"svc+http://{address(server)}") == Verdict.failed(
            f"not found there, so it is no such node, prefix or service: svc+http://{address(server)}"
        )


# ---- one of its services


def test_the_status_of_a_service_is_its_verdict(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name) as server:
        url = f"svc+http://{address(server)}"
        assert check(url, service="db") == READY
        assert check(url, service="storage") == Verdict.not_ready(f"initializing: service storage of {url}")
        assert check(url, service="indexer") == Verdict.failed(f"down: service indexer of {url}")


def test_a_service_that_the_node_does_not_know_is_failed(check: CheckRunner) -> None:
    with running_server(worked_example(), check.loop_name) as server:
        url = f"svc+http://{address(server)}"
        assert check(url, service="cache") == Verdict.failed(
            f"not found there, so it is no such node, prefix or service: service cache of {url}"
        )


def test_a_service_may_have_any_id(check: CheckRunner) -> None:
    world = NODE_CASES["odd ids"]()
    with running_server(world.node, check.loop_name) as server:
        seen = {one: check(f"svc+http://{address(server)}", service=one).outcome for one in ODD_SERVICE_IDS}
    assert seen == {one: OUTCOMES[status] for one, status in ODD_SERVICE_IDS.items()}


@pytest.mark.parametrize("service_id", ["a/b c%", "ü?#", "%2F"])
def test_an_id_stands_in_one_segment_of_the_path(check: CheckRunner, service_id: str) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"svc+http://{backend.address}", service=service_id) == READY
        assert backend.last_request.target == f"/svc/node/services/{quote(service_id, safe='')}/health"


# ---- answers that a node does not give


@pytest.mark.parametrize("status", [201, 204, 302, 400, 401, 500, 502])
def test_any_other_answer_is_failed(check: CheckRunner, status: int) -> None:
    with HttpBackend(http_response(status, Location="/elsewhere")) as backend:
        url = f"svc+http://{backend.address}"
        assert check(url) == Verdict.failed(f"answered {status}, which is no answer of this interface: {url}")
        assert len(backend.requests) == 1


def test_a_node_that_is_not_there_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"svc+http://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")
        assert check(url, service="db") == Verdict.failed(f"connection refused: service db of {url}")
    with Backend(reset) as backend:
        assert check(f"svc+http://{backend.address}").outcome is Outcome.FAILED


def test_a_node_that_says_nothing_is_failed_at_the_deadline_and_left_closed(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.times_out(f"svc+http://{backend.address}") == Verdict.failed(
            "no answer within 0.2 s, in its step exchange"
        )


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        without, afterwards = check.without_descriptors(f"svc+http://{backend.address}")
    assert (without.outcome, afterwards) == (Outcome.UNKNOWN, READY)


# ---- TLS


def test_a_node_is_checked_through_tls(check: CheckRunner, certificate: Certificate) -> None:
    node, ca = worked_example(), str(certificate.certificate)
    tls = tls_context(certificate.certificate, certificate.key)
    with running_server(node, check.loop_name, tls=tls) as server:
        url = f"svc+https://{address(server)}"
        assert check(url, ca=ca, service="db") == READY
        assert check(url, service="db").outcome is Outcome.FAILED
        assert check(url, ca=ca, service="db", min_cert_days=1) == Verdict.not_ready(
            "its certificate expires in 0.0 days, before min_cert_days is reached"
        )
        assert check(url, ca=ca, service="indexer", min_cert_days=1).outcome is Outcome.FAILED


# ---- what is refused at once


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("svc+http://127.0.0.1/svc", {"prefix": "/eigen"}, "stands beside the path"),
        ("svc+http://127.0.0.1", {"prefix": "eigen"}, 'begins with a slash; did you mean "/eigen"'),
    ],
)
def test_a_prefix_that_cannot_be_right_is_refused(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"^prefix: {words}"):
        make_probe({"url": url, **options})


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(ProbeError, match="names no host"):
        make_probe("svc+http://")


# ---- a fleet


def test_a_node_whose_services_are_nodes_follows_them(check: CheckRunner) -> None:
    nodes = {name: Node(name, version="v1.4.2") for name in ("north", "south", "west")}
    backing = {name: node.register("db") for name, node in nodes.items()}
    fleet = Node("fleet", version="v1.4.2")

    async def seen(health: Health, **statuses: Status) -> None:
        def is_so() -> bool:
            return fleet.health is health and {one.id: state.status for one, state in fleet} == statuses

        assert await asyncio.to_thread(becomes_true, is_so)

    async def story() -> None:
        async with fleet.probing():
            for handle in backing.values():
                report(handle, Status.UP)
            await seen(Health.HEALTHY, north=Status.UP, south=Status.UP, west=Status.UP)
            backing["north"].initializing("loading")
            backing["south"].down("broken")
            await seen(Health.PARTIAL, north=Status.INITIALIZING, south=Status.DOWN, west=Status.UP)
            wires["west"].close()
            await seen(Health.PARTIAL, north=Status.INITIALIZING, south=Status.DOWN, west=Status.DOWN)
            backing["north"].down("broken")
            await seen(Health.UNHEALTHY, north=Status.DOWN, south=Status.DOWN, west=Status.DOWN)
            backing["south"].up()
            await seen(Health.PARTIAL, north=Status.DOWN, south=Status.UP, west=Status.DOWN)

    with ExitStack() as stack:
        wires = {name: stack.enter_context(running_server(node, check.loop_name)) for name, node in nodes.items()}
        for name, server in wires.items():
            probe = f"svc+http://{address(server)}"
            fleet.register(name, probe=probe, interval="50ms", fall=1, rise=1, start_period="0s", stale_after="1m")
        check.run(story())


def test_an_agent_gives_a_view_of_a_fleet(tmp_path: Path) -> None:
    nodes = {world: NODE_CASES[world]().node for world in ("all up", "one down", "all down")}
    with ExitStack() as stack:
        wires = {world: stack.enter_context(running_server(node)) for world, node in nodes.items()}
        tables = [
            f'[[services]]\nid = "{world}"\nprobe = "svc+http://{address(server)}"\ninterval = "100ms"\n'
            'fall = 1\nstart_period = "0s"\nstale_after = "1m"\n'
            for world, server in wires.items()
        ]
        agent = stack.enter_context(Agent(tmp_path, "--listen", "127.0.0.1:0", config="\n".join(tables)))
        agent.wait_until(lambda: agent.statuses() == {"all up": "Up", "one down": "Initializing", "all down": "Down"})
        assert agent.health() == 206
