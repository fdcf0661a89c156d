"""Nodes in every condition that a client can distinguish, by name.

A server in another process serves all of them; the header `X-Node-Case` selects one. A server in this process serves
one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from svcnode import Handle, Node, Status, asgi, wsgi
from svcnode.agent.embed.node import internals_of
from svcnode.node.node_state import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from svcnode import Health, Identity, Service, ServiceState


def worked_example() -> Node:
    """The worked example of the interface: one service in each of the three statuses."""
    node = Node("validator-7", version="v1.4.2")
    node.register("db", name="Ledger database", description="Holds the ledger").up()
    node.register("indexer", name="Indexer", description="Follows the chain").down("out of disk")
    node.register("storage", name="Storage daemon", description="Keeps the blobs").initializing("loading")
    return node


CASE_HEADER = "X-Node-Case"
SECRET = "swordfish"
ODD_SERVICE_IDS = {
    "a/b c%": Status.UP,
    "ü": Status.DOWN,
    "...": Status.INITIALIZING,
    ".a": Status.UP,
    "?": Status.DOWN,
    "#": Status.INITIALIZING,
    "%2F": Status.UP,
    "/": Status.DOWN,
    "//": Status.INITIALIZING,
    "{service_ID}": Status.UP,
    "health": Status.DOWN,
    "a/health": Status.INITIALIZING,
    "node": Status.UP,
    "+": Status.DOWN,
    " ": Status.INITIALIZING,
    "a;b=c&d": Status.UP,
    "日本語 🚀": Status.DOWN,
    "x" * 256: Status.INITIALIZING,
}


@dataclass(frozen=True, slots=True)
class NodeCase:
    node: Node
    prefixes: tuple[str, ...] = ("/svc",)


class BrokenState(NodeState):
    """Raises on every access."""

    def _fail(self) -> NoReturn:
        raise RuntimeError(SECRET)

    @property
    def identity(self) -> Identity:
        self._fail()

    @property
    def health(self) -> Health:
        self._fail()

    def status(self, service_id: str) -> Status | None:
        self._fail()

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        self._fail()


def _broken() -> Node:
    node = Node("validator-7", version="v1.4.2")
    internals = internals_of(node)
    internals.state = BrokenState(internals.state.identity)
    return node


def _services(**statuses: Status) -> Node:
    node = Node("validator-7", version="v1.4.2")
    for service_id, status in statuses.items():
        report(node.register(service_id), status)
    return node


def report(handle: Handle, status: Status) -> None:
    match status:
        case Status.UP:
            handle.up()
        case Status.DOWN:
            handle.down("broken")
        case Status.INITIALIZING:
            handle.initializing("loading")


def _critical_down() -> Node:
    node = _services(db=Status.UP, indexer=Status.UP)
    node.register("ledger", impact="critical").down("broken")
    return node


def _critical_initializing() -> Node:
    node = _services(db=Status.UP)
    node.register("ledger", impact="critical").initializing("loading")
    return node


def _uncounted_down() -> Node:
    node = _services(db=Status.UP)
    node.register("dashboard", impact="none").down("broken")
    return node


def _draining() -> Node:
    node = _services(db=Status.UP)
    node.drain()
    return node


def _with_an_issue() -> Node:
    node = _services(db=Status.UP)
    node.set_issue("disk full")
    return node


def _starting() -> Node:
    node = Node("validator-7", version="v1.4.2", starting=True)
    node.register("db").up()
    return node


def _odd_ids() -> Node:
    node = Node("validator-7", version="v1.4.2")
    for service_id, status in ODD_SERVICE_IDS.items():
        report(node.register(service_id), status)
    return node


NODE_CASES: dict[str, Callable[[], NodeCase]] = {
    "worked example": lambda: NodeCase(worked_example()),
    "no services": lambda: NodeCase(_services()),
    "all up": lambda: NodeCase(_services(db=Status.UP, indexer=Status.UP)),
    "all down": lambda: NodeCase(_services(db=Status.DOWN, indexer=Status.DOWN)),
    "one down": lambda: NodeCase(_services(db=Status.UP, indexer=Status.DOWN)),
    "critical down": lambda: NodeCase(_critical_down()),
    "critical initializing": lambda: NodeCase(_critical_initializing()),
    "uncounted down": lambda: NodeCase(_uncounted_down()),
    "draining": lambda: NodeCase(_draining()),
    "with an issue": lambda: NodeCase(_with_an_issue()),
    "starting": lambda: NodeCase(_starting()),
    "odd ids": lambda: NodeCase(_odd_ids()),
    "two prefixes": lambda: NodeCase(worked_example(), ("/svc", "/eigen")),
    "broken": lambda: NodeCase(_broken()),
}


@cache
def _asgi_application(name: str) -> Any:
    case = NODE_CASES[name]()
    return asgi(case.node, prefix=case.prefixes, start=False)


@cache
def _wsgi_application(name: str) -> Any:
    case = NODE_CASES[name]()
    return wsgi(case.node, prefix=case.prefixes)


async def asgi_cases(scope: Any, receive: Any, send: Any) -> None:
    """All node cases in one ASGI application."""
    headers = dict(scope["headers"])
    await _asgi_application(headers[CASE_HEADER.lower().encode()].decode())(scope, receive, send)


def wsgi_cases(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """All node cases in one WSGI application."""
    body: Iterable[bytes] = _wsgi_application(environ["HTTP_X_NODE_CASE"])(environ, start_response)
    return body
