"""Check hostile servers with every kind of probe that connects: judged in time, in bounds, with a code, and closed.

`python -m tests.stress.hostile_backends` runs each kind against servers that never end, drip, lie about lengths, send
compressed bombs or deep nesting, speak another protocol, stop in a TLS handshake, redirect without end, reset or say
nothing. No check may succeed, raise, take longer than its deadline, or read without a limit; afterwards no connection,
task, thread or descriptor is left.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import asyncio
import gzip
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode as Code
from svcnode.core.model import Outcome
from svcnode.probes import KINDS, make_probe
from svcnode.probes.run import run_check
from tests.stress.siege import memory_bytes
from tests.support.backends import Backend, Peer, open_file_count, server_tls
from tests.support.certificates import Certificate, make_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from svcnode.core.model import Verdict

LOCAL = {"disk", "exec", "file", "heartbeat", "sqlite"}  # they do not connect
ENCRYPTED = {"tls", "amqps", "grpcs", "rediss", "valkeys"} | {kind for kind in KINDS if kind.endswith("https")}
SCHEMES = [kind for kind in KINDS if kind not in LOCAL]
HTTP = {kind for kind in SCHEMES if "http" in kind} | {"etcd"}
TIMEOUT_S = 3.0  # on a busy machine, reading up to a limit takes time
LATE_S = 4.0  # on a busy machine, beyond the deadline
MAX_SENT_BYTES = 64 * 1024**2  # the limits of the probes and the buffers of the kernel are far below
MAX_GROWTH_BYTES = 96 * 1024**2
DRIP_S = 0.05
# The health of a node is the status code of its response: a check reads no body.
STATUS_ONLY = {"svc+http", "svc+https"}
USERS = {"mysql", "mariadb", "postgresql", "postgres"}
OPTIONS: dict[str, dict[str, object]] = {
    "jsonrpc+http": {"method": "status"},
    "jsonrpc+https": {"method": "status"},
    "tcp": {"send": "hello\n", "expect": "a text that no hostile server sends"},
    "tls": {"send": "hello\n", "expect": "a text that no hostile server sends"},
    "http": {"json": {"/status": "ok"}, "redirects": 3},
    "https": {"json": {"/status": "ok"}, "redirects": 3},
}
PATHS = {"redis+sentinel": "/main"}

# ---- what the servers send

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
DEEP = b"[" * 500_000
NATS_INFO = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n'
# The beginning of a message of the protocol, for servers that send it slowly.
BEGINNINGS = {
    "amqp": b"\x01\x00\x00\x00\x00\x01\xff",
    "grpc": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "memcached": b"VERSION 1.6.18",
    "mysql": b"\x4a\x00\x00\x00\x0a8.0.36\x00",
    "nats": NATS_INFO,
    "postgresql": b"R\x00\x00\x00\x08",
    "redis": b"$100\r\nredis_version",
}
# Lengths that are lies, or that would need all memory.
LIES = {
    "amqp": b"\x01\x00\x00\x7f\xff\xff\xff",
    "grpc": b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "memcached": b"VALUE svcnode 0 999999999999\r\n",
    "mysql": b"\xff\xff\xff\x00",
    "nats": NATS_INFO + b"PONG\r\nMSG a 1 999999999999\r\n",
    "postgresql": b"R\x7f\xff\xff\xff",
    "redis": b"*999999999\r\n$999999999999\r\n",
}
FAMILIES = {
    "amqps": "amqp",
    "grpcs": "grpc",
    "mariadb": "mysql",
    "postgres": "postgresql",
    "redis+sentinel": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
}
SERVER_FIRST = {"mysql", "nats"}


def family(scheme: str) -> str:
    return "http" if scheme in HTTP else FAMILIES.get(scheme, scheme)


class HostileServer:
    """Runs the script for each connection and counts the bytes that it could send."""

    def __init__(self, scheme: str, script: Callable[[HostileServer, Peer], None]) -> None:
        self.family = family(scheme)
        self._script = script
        self.sent_bytes = 0

    def __call__(self, peer: Peer) -> None:
        self._script(self, peer)

    def wait_for_client(self, peer: Peer) -> None:
        if self.family not in SERVER_FIRST:
            peer.sock.recv(65536)

    def send(self, peer: Peer, pieces: Iterable[bytes], pause_s: float = 0.0) -> None:
        for piece in pieces:
            peer.sock.sendall(piece)
            self.sent_bytes += len(piece)
            if pause_s:
                time.sleep(pause_s)


def forever(first: bytes, then: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield then


def say_nothing(server: HostileServer, peer: Peer) -> None:
    pass


def reset(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    peer.reset()


def send_zeros(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(b"", bytes(65536)))


def send_text(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(b"", b"x" * 65536))


def send_endless_lines(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(BEGINNINGS.get(server.family, OK), b"X: y\r\n" * 8192))


def send_endless_body(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"))


def send_interim_responses(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" * 1000))


def drip(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    data = BEGINNINGS.get(server.family, OK + b"Content-Length: 1000\r\n\r\n") + b" " * 1000
    server.send(peer, (bytes([byte]) for byte in data), DRIP_S)


def lie(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(LIES.get(server.family, OK + b"Content-Length: 999999999999\r\n\r\n"), bytes(65536)))


def send_less_than_said(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [LIES.get(server.family, OK + b"Content-Length: 1000\r\n\r\n{"), b"ab"])
    peer.shutdown_write()


def respond_always(server: HostileServer, peer: Peer, encoding: bytes, body: bytes) -> None:
    """Also to the later requests of a check."""
    head = OK + b"Content-Encoding: %s\r\nContent-Length: %d\r\n\r\n" % (encoding, len(body))
    while peer.sock.recv(65536):
        server.send(peer, [head, body])


@cache
def bomb() -> bytes:
    """100 MiB of zeros, in 100 KiB. A probe accepts 1 MiB."""
    return gzip.compress(bytes(100 * 1024**2))


def send_bomb(server: HostileServer, peer: Peer) -> None:
    respond_always(server, peer, b"gzip", bomb())


def send_bomb_in_bomb(server: HostileServer, peer: Peer) -> None:
    respond_always(server, peer, b"gzip, gzip", gzip.compress(bomb()))


def nest(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    if server.family == "redis":
        server.send(peer, [b"*1\r\n" * 500_000])
    else:
        server.send(peer, [OK + b"Content-Length: %d\r\n\r\n" % len(DEEP), DEEP])
    peer.shutdown_write()


def speak_smtp(server: HostileServer, peer: Peer) -> None:
    server.send(peer, [b"220 mail.example ESMTP\r\n"])


def speak_ssh(server: HostileServer, peer: Peer) -> None:
    server.send(peer, [b"SSH-2.0-OpenSSH_9.2\r\n"])
    peer.shutdown_write()


def speak_http(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"])
    peer.shutdown_write()


def speak_tls(server: HostileServer, peer: Peer) -> None:
    """The alert of a server that expects TLS."""
    server.send(peer, [b"\x15\x03\x03\x00\x02\x02\x0a"])
    peer.shutdown_write()


def stop_in_handshake(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + bytes(20)])


def send_endless_handshake(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, forever(b"", b"\x16\x03\x03\x40\x00" + b"\x0b\x00\xff\xff" + bytes(16380)))


def close_in_handshake(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    peer.shutdown_write()


def redirect(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    server.send(peer, [b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"])
    peer.shutdown_write()


def redirect_to_file(server: HostileServer, peer: Peer) -> None:
    server.wait_for_client(peer)
    location = b"Location: file:///etc/passwd\r\n"
    server.send(peer, [b"HTTP/1.1 302 Found\r\n" + location + b"Content-Length: 0\r\nConnection: close\r\n\r\n"])
    peer.shutdown_write()


IN_TIME = {Code.TIMEOUT, Code.TLS_TIMEOUT}
CLOSED = {Code.CONNECTION_CLOSED}
WRONG = {Code.PROTOCOL_ERROR, Code.UNEXPECTED_RESPONSE}
BAD_TLS = {Code.TLS_FAILED, Code.TLS_NOT_OFFERED, Code.TLS_TIMEOUT}


@dataclass(frozen=True)
class Behaviour:
    """`tls` servers send instead of a handshake; other servers send inside TLS if the kind uses it."""

    script: Callable[[HostileServer, Peer], None]
    codes: set[Code]
    schemes: set[str]
    in_tls: bool = True


ALL, PLAIN, TLS = set(SCHEMES), set(SCHEMES) - ENCRYPTED, set(ENCRYPTED)
BEHAVIOURS = {
    "silent": Behaviour(say_nothing, IN_TIME, ALL),
    "reset": Behaviour(reset, CLOSED, ALL),
    "endless zeros": Behaviour(send_zeros, WRONG, ALL),
    "endless text": Behaviour(send_text, WRONG, ALL),
    "endless lines": Behaviour(send_endless_lines, WRONG, ALL),
    "endless body": Behaviour(send_endless_body, WRONG, HTTP - STATUS_ONLY),
    "endless interim responses": Behaviour(send_interim_responses, WRONG, HTTP),
    "dripping": Behaviour(drip, IN_TIME | WRONG, ALL),
    "a length that is a lie, endless": Behaviour(lie, WRONG | CLOSED, ALL - STATUS_ONLY),
    "a length that is a lie, closed": Behaviour(send_less_than_said, WRONG | CLOSED, ALL - STATUS_ONLY),
    "a compressed bomb": Behaviour(send_bomb, WRONG, HTTP - STATUS_ONLY),
    "a bomb in a bomb": Behaviour(send_bomb_in_bomb, WRONG, HTTP - STATUS_ONLY),
    "deep nesting": Behaviour(nest, WRONG, HTTP - STATUS_ONLY | {kind for kind in SCHEMES if family(kind) == "redis"}),
    "SMTP": Behaviour(speak_smtp, WRONG | IN_TIME, ALL),
    "SSH": Behaviour(speak_ssh, WRONG | CLOSED, ALL),
    "HTTP 400": Behaviour(speak_http, WRONG | CLOSED, ALL - HTTP),
    "a TLS alert to a plain client": Behaviour(speak_tls, WRONG | CLOSED, PLAIN),
    "a plain server": Behaviour(speak_smtp, BAD_TLS, TLS, in_tls=False),
    "silent before the handshake": Behaviour(say_nothing, BAD_TLS, TLS, in_tls=False),
    "stops in the handshake": Behaviour(stop_in_handshake, BAD_TLS, TLS, in_tls=False),
    "closes in the handshake": Behaviour(close_in_handshake, BAD_TLS | CLOSED, TLS, in_tls=False),
    "an endless handshake": Behaviour(send_endless_handshake, BAD_TLS, TLS, in_tls=False),
    "redirects to itself": Behaviour(redirect, {Code.REDIRECTED}, HTTP),
    "redirects to a file": Behaviour(redirect_to_file, {Code.REDIRECTED}, HTTP),
}


# ---- the campaign


@dataclass(frozen=True, kw_only=True)
class HostileRun:
    scheme: str
    behaviour: str
    verdict: Verdict
    error: BaseException | None
    late_s: float
    sent_bytes: int

    @property
    def problem(self) -> str | None:
        if self.verdict.outcome is Outcome.READY:
            return "judged ready"
        if self.error is not None:
            return f"raised {self.error!r}"
        if self.late_s > LATE_S:
            return f"{self.late_s:.1f} s after the deadline"
        if self.sent_bytes > MAX_SENT_BYTES:
            return f"read {self.sent_bytes / 1024**2:.0f} MiB"
        if self.verdict.code not in BEHAVIOURS[self.behaviour].codes:
            return f"{self.verdict.code}: {self.verdict.reason[:150]}"
        return None


async def run_one(scheme: str, name: str, certificate: Certificate) -> HostileRun:
    behaviour = BEHAVIOURS[name]
    options = dict(OPTIONS.get(scheme, {}))
    tls = None
    if scheme in ENCRYPTED:
        options["ca"] = str(certificate.certificate)
        tls = server_tls(certificate) if behaviour.in_tls else None
    server = HostileServer(scheme, behaviour.script)
    backend = Backend(server, tls=tls)
    await asyncio.to_thread(backend.__enter__)
    try:
        user = "me:secret@" if scheme in USERS else ""
        url = f"{scheme}://{user}{backend.address}{PATHS.get(scheme, '')}"
        probe = make_probe({"url": url, **options})
        started_s = time.monotonic()
        verdict, error = await run_check(probe, TIMEOUT_S)
        late_s = time.monotonic() - started_s - TIMEOUT_S
    finally:
        await asyncio.to_thread(backend.__exit__)  # fails if a connection is left open
    return HostileRun(
        scheme=scheme, behaviour=name, verdict=verdict, error=error, late_s=late_s, sent_bytes=server.sent_bytes
    )


def all_runs(schemes: Iterable[str], behaviours: Iterable[str]) -> list[tuple[str, str]]:
    return [(scheme, name) for name in behaviours for scheme in schemes if scheme in BEHAVIOURS[name].schemes]


async def run_campaign(folder: Path, runs: list[tuple[str, str]], concurrent: int = 4) -> list[HostileRun]:
    certificate = make_certificate(folder)
    bomb()  # takes a second
    limit = asyncio.Semaphore(concurrent)

    async def run(scheme: str, name: str) -> HostileRun:
        async with limit:
            return await run_one(scheme, name, certificate)

    results = await asyncio.gather(*(run(scheme, name) for scheme, name in runs))
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks are left: {left}"
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.hostile_backends", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=SCHEMES)
    parser.add_argument("--behaviours", nargs="*", default=list(BEHAVIOURS))
    arguments = parser.parse_args()
    own_pid, started_s = "self", time.monotonic()
    with tempfile.TemporaryDirectory(prefix="svcnode-hostile-") as folder:
        for scheme in arguments.kinds:  # load the drivers before anything is counted
            asyncio.run(run_campaign(Path(folder), [(scheme, "reset")]))
        before_bytes, files, threads = memory_bytes(own_pid, "VmRSS"), open_file_count(), threading.active_count()
        results = asyncio.run(run_campaign(Path(folder), all_runs(arguments.kinds, arguments.behaviours)))
    growth_bytes = memory_bytes(own_pid, "VmRSS") - before_bytes
    problems = [result for result in results if result.problem]
    for result in problems:
        print(f"{result.scheme}, {result.behaviour}: {result.problem}")
    left = (open_file_count() - files, threading.active_count() - threads)
    print(f"checks: {len(results)} of {len(arguments.kinds)} kinds, in {time.monotonic() - started_s:.0f} s")
    print(f"latest verdict: {max(result.late_s for result in results):.2f} s after the deadline of {TIMEOUT_S:g} s")
    print(f"most bytes read: {max(result.sent_bytes for result in results) / 1024**2:.1f} MiB")
    print(f"memory after all checks: {growth_bytes / 1024**2:.0f} MiB more; descriptors, threads left: {left}")
    print(f"wrong, late, unbounded or failed checks: {len(problems)}")
    return 1 if problems or growth_bytes > MAX_GROWTH_BYTES or any(count > 0 for count in left) else 0


if __name__ == "__main__":
    sys.exit(main())
