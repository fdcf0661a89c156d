"""HAProxy in front of two HTTP servers, which it uses in turn and does not check."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tests.support.backends import HttpBackend, http_response
from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

# One thread: with more, each of them takes turns by itself.
_CONFIG = """\
global
  nbthread 1
  maxconn 64
defaults
  mode http
  timeout connect 2s
  timeout client 5s
  timeout server 5s
listen ledger
  bind {host}:{port}
  balance roundrobin
{servers}
"""


class HaproxyServer(RealServer):
    def __init__(self, folder: Path, backend_count: int = 2) -> None:
        super().__init__(folder)
        self._backend_count = backend_count
        self._broken_count = 0
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def command(self) -> Sequence[str]:
        return [program("haproxy", "haproxy"), "-db", "-f", "haproxy.cfg"]

    def prepare(self) -> None:
        backends = [
            self._stack.enter_context(HttpBackend(partial(self._respond, number)))
            for number in range(self._backend_count)
        ]
        servers = "\n".join(f"  server s{each.port} {each.address}" for each in backends)
        (self.folder / "haproxy.cfg").write_text(
            _CONFIG.format(host=self.host, port=self.port, servers=servers), encoding="utf-8"
        )

    def _respond(self, number: int, _request: ReceivedRequest) -> bytes:
        return http_response(500, "out of order") if number < self._broken_count else http_response(200, "ok")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._stack.close()

    def is_ready(self) -> bool:
        return http_request(self.port, "/") == (200, "ok")

    @contextmanager
    def broken_backends(self, count: int = 1) -> Iterator[None]:
        """These respond with 500."""
        self._broken_count = count
        yield
        self._broken_count = 0
