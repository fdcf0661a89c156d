"""A program that embeds a node with its operator surface, and the servers that run it.

As ASGI, the node is below two mounts, at /ops/status. As WSGI, it is beside the program, at /status. The options are in
the environment; `/report/{status}` changes the status of the service `indexer`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from svcnode import Node, OperatorOptions, asgi, wsgi
from tests.support.servers.base import RealServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from starlette.requests import Request

ROOT = Path(__file__).parents[2]
READ_TIMEOUT_S = 30.0
OPTIONS = json.loads(os.environ.get("OPERATOR_OPTIONS", "{}"))

node = Node("validator-7", version="v1.4.2")
indexer = node.register("indexer", name="Indexer", impact="critical")
node.register("dead", name="Dead", probe="tcp://127.0.0.1:1", interval="1s", start_period="0s", impact="none")
indexer.up("block 1")
if "HISTORY" in os.environ:
    node.record_history(os.environ["HISTORY"])
if "WEBHOOK" in os.environ:
    node.notify(webhook="${WEBHOOK}", group_wait="0s")


def report(status: str) -> str:
    {"up": indexer.up, "down": indexer.down}[status]("by request")
    return status


async def report_route(request: Request) -> PlainTextResponse:
    return PlainTextResponse(report(request.path_params["status"]))


def make_asgi() -> Starlette:
    mounted = Mount("/ops", routes=[Mount("/status", asgi(node, operator=OperatorOptions(**OPTIONS)))])
    return Starlette(routes=[Route("/report/{status}", report_route), mounted], lifespan=node.lifespan)


def program(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    _, kind, status = f"{environ['PATH_INFO']}//".split("/")[:3]
    return [report(status).encode() if kind == "report" else b"the program"]


def make_wsgi() -> Any:
    return wsgi(node, fallback=program, operator=OperatorOptions(path="/status", **OPTIONS))


class EmbeddingProgram(RealServer):
    mount: str  # of the page
    interface_mount: str

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder)
        self._host = host
        self._environ = {**(environ or {}), "OPERATOR_OPTIONS": json.dumps(options), "PYTHONPATH": str(ROOT)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.interface_mount}"

    @property
    def page_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.mount}"

    def environ(self) -> Mapping[str, str]:
        return self._environ

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def is_ready(self) -> bool:
        return self.request_interface("/svc/node")[0] == 200

    def request(self, path: str, *, host: str = "127.0.0.1", method: str = "GET", **headers: str) -> tuple[int, str]:
        """Code and body."""
        with self.open(path, host=host, method=method, **headers) as response:
            return response.status, response.read().decode()

    def request_page(self, path: str = "/", **headers: str) -> tuple[int, str]:
        return self.request(f"{self.mount}{path}", **headers)

    def request_interface(self, path: str, **headers: str) -> tuple[int, str]:
        return self.request(f"{self.interface_mount}{path}", **headers)

    @contextmanager
    def open(
        self, path: str, *, host: str = "127.0.0.1", method: str = "GET", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(host, self.port, timeout=READ_TIMEOUT_S)
        with closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            with closing(connection.getresponse()) as response:
                yield response

    @contextmanager
    def events(self, **headers: str) -> Iterator[Iterator[dict[str, str]]]:
        """The fields of each event, until the server ends the stream."""
        with self.open(f"{self.mount}/events", **headers) as response:
            assert response.status == 200
            yield _events(response)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in response:
        if text := line.decode().rstrip("\n"):
            name, _, value = text.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield fields
            fields = {}


class UvicornProgram(EmbeddingProgram):
    mount = interface_mount = "/ops/status"

    def command(self) -> Sequence[str]:
        bind = ("--host", self._host, "--port", str(self.port))
        return [sys.executable, "-m", "uvicorn", "--factory", *bind, "tests.support.embedded_app:make_asgi"]


class GunicornProgram(EmbeddingProgram):
    mount, interface_mount = "/status", ""
    worker_options: tuple[str, ...] = ("--threads", "4")

    def command(self) -> Sequence[str]:
        options = (
            "--bind",
            f"{self._host}:{self.port}",
            "--no-control-socket",
            "--access-logfile",
            "-",
            *self.worker_options,
        )
        return [sys.executable, "-m", "gunicorn", *options, "tests.support.embedded_app:make_wsgi()"]


class SyncGunicornProgram(GunicornProgram):
    worker_options = ()


PROGRAMS = (UvicornProgram, GunicornProgram)
