"""Any number of nodes behind one port, distinguished by the path of their URL. Each can be made to hang."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.http_server import WAIT_TIMEOUT_S


@dataclass
class FakeNode:
    """Can be changed at any time; the next response uses the new values."""

    health: int = 200
    services: dict[str, str] = field(default_factory=lambda: {"db": "Up"})
    hangs: bool = False
    prefix: str = "svc"
    has_identity: bool = True


class FakeNodes:
    """Serves `nodes["n7"]` at `http://127.0.0.1:port/n7` inside the `with` block."""

    def __init__(self, nodes: dict[str, FakeNode]) -> None:
        self.nodes = nodes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake nodes", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self.connection_count = 0
        self.response_count = 0
        self.port = 0

    def url(self, name: str) -> str:
        return f"127.0.0.1:{self.port}/{name}"

    @property
    def urls(self) -> list[str]:
        return [self.url(name) for name in self.nodes]

    @property
    def open_count(self) -> int:
        """Open connections."""
        return len(self._writers)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_TIMEOUT_S)

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self._writers.add(writer)
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                target = request.split(b" ", 2)[1].decode()
                _, name, path = target.split("/", 2)
                if self.nodes[name].hangs:
                    await reader.read()
                writer.write(self._respond(name, self.nodes[name], path))
                self.response_count += 1
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _respond(self, name: str, node: FakeNode, target: str) -> bytes:
        path, _, _ = target.partition("?")
        match path.removeprefix(f"{node.prefix}/"):
            case "node" if node.has_identity:
                return _response(200, {"node_name": name, "spec_version": "v0.0.1", "node_version": "v1.4.2"})
            case "node/health":
                return _response(node.health, None)
            case "node/services":
                services = [
                    {"id": service_id, "name": service_id.title(), "description": "", "status": status}
                    for service_id, status in node.services.items()
                ]
                return _response(200, {"services": services})
            case _:
                return _response(404, {"message": "Not found"})


def _response(code: int, document: object) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    content_type = "" if document is None else "Content-Type: application/json\r\n"
    return f"HTTP/1.1 {code} Reason\r\n{content_type}Content-Length: {len(body)}\r\n\r\n".encode() + body
