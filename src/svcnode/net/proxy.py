"""HTTP proxies. A proxy is used only if the option `proxy` is set; those in the environment are not used."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.text import excerpt
from svcnode.core.url import Url
from svcnode.net.connect import TcpEndpoint, transport_from_socket
from svcnode.net.os_errors import CodedOSError, InconclusiveError, code_for_os_error, connection_error_text
from svcnode.net.trace import step

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    from svcnode.net.connect import Endpoint

P = TypeVar("P", bound=asyncio.Protocol)

FROM_ENVIRONMENT = "environment"
MAX_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Proxy:
    endpoint: TcpEndpoint
    headers: list[tuple[str, str]] = field(repr=False)

    @classmethod
    def from_option(cls, option: str, scheme: str, target: Endpoint) -> Proxy | None:
        text = _from_environment(scheme, target) if option == FROM_ENVIRONMENT else option
        if not text:
            return None
        try:
            url = Url.parse(text if "://" in text else f"http://{text}")
            endpoint = TcpEndpoint.of(url.require_host(), url.port or 80)
        except ProbeError as exc:
            raise OptionError("proxy", str(exc)) from exc
        if url.scheme != "http":
            raise OptionError("proxy", f"only http:// proxies are supported, not {url.scheme}://")
        basic = url.basic_authorization
        return cls(endpoint, [("Proxy-Authorization", basic)] if basic else [])

    @contextmanager
    def wrap_errors(self) -> Iterator[None]:
        """Turn connection errors of the proxy into `InconclusiveError`: they say nothing about the service."""
        try:
            yield
        except OSError as exc:
            if isinstance(exc, InconclusiveError) or code_for_os_error(exc) is ReasonCode.RESOURCE_EXHAUSTED:
                raise  # a fault of this machine
            raise InconclusiveError(
                f"proxy {self.endpoint}: {connection_error_text(exc)}", ReasonCode.PROXY_FAILED
            ) from exc

    def tunnel_to(self, target: Endpoint) -> Callable[[Callable[[], P]], Awaitable[tuple[asyncio.Transport, P]]]:
        """A function that connects to the target through this proxy."""

        async def connect(protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
            with self.wrap_errors():
                sock = await self.endpoint.open_socket()
            try:
                with step("tunnel", str(self.endpoint)):
                    await self._open_tunnel(sock, target)
            except BaseException:  # also on cancellation: the caller does not have the socket yet
                sock.close()
                raise
            return await transport_from_socket(sock, protocol)

        return connect

    async def _open_tunnel(self, sock: socket.socket, target: Endpoint) -> None:
        loop = asyncio.get_running_loop()
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{name}: {value}" for name, value in self.headers)]
        await loop.sock_sendall(sock, "\r\n".join([*lines, "", ""]).encode("latin-1"))
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
            part = await loop.sock_recv(sock, 4096)
            if not part:
                break
            head += part
        status_line = head.split(b"\r\n", 1)[0].decode("latin-1")
        if not re.match(r"HTTP/1\.[01] 2", status_line):
            raise CodedOSError(
                f'proxy {self.endpoint} rejected CONNECT: "{excerpt(status_line)}"', ReasonCode.PROXY_FAILED
            )


def _from_environment(scheme: str, target: Endpoint) -> str:
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    if proxy_bypass_environment(str(target)):
        return ""
    return str(getproxies_environment().get(scheme, ""))
