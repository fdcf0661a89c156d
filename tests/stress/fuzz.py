"""Send random requests to the HTTP server: no crash, no hang, no unexplained 5xx, and no answer that depends on chance.

`python -m tests.stress.fuzz` makes sequences of requests, most of them with errors, and sends each sequence twice to
the server's code in this process: once in one piece without the response cache, and once in random segments with the
cache and with a client that reads in bursts. Both times the responses must be the same, and for correct requests they
must be the expected ones. Then it sends sequences over sockets to `svcnode serve`, and compares again. Operator paths
are included. A failure prints the bytes; `--seed` repeats a run.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from svcnode.api.app import Mount, StreamingResponse
from svcnode.api.spec import Response, make_response
from svcnode.core.address import Address
from svcnode.operator import OperatorApp
from svcnode.operator.auth import OperatorAuth
from svcnode.server.connection import Connection, Phase
from svcnode.server.response_cache import ResponseCache
from svcnode.server.state import ServerLimits, ServerState
from tests.stress.campaigns import campaign_folder, campaign_parser
from tests.stress.http_corpus import CORPUS
from tests.support.operator_context import OperatorHarness
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from svcnode.api.spec import Request
    from svcnode.node.node_state import NodeState

TOKEN = "0123456789abcdef"
SERVICES = {"db": "Up", "cache": "Initializing", "old": "Down"}
MORE_SERVICES = 400  # so that the list is longer than the responses that are sent from a memory file
CODES = {"Up": 200, "Initializing": 206, "Down": 503}
EXPLAINED_5XX = {503, 505}  # the health of a service that is Down; another version of HTTP
TURNS = 20_000  # of the event loop: more is a hang
ANSWER_S = 60.0  # over sockets, on a busy machine


# ---- what is sent


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """Requests on one connection. `codes` are the expected codes, if every request is correct."""

    sent: bytes
    requests: int
    codes: tuple[int, ...] | None = None


HEALTH = "/svc/node/services/{}/health"
METHODS = ("GET",) * 12 + ("HEAD",) * 3 + ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE")
# Paths of the interface, with the code of GET; None: the node's health.
TARGETS: dict[str, int | None] = {
    "/svc/node": 200,
    "/svc/node?version=v0.0.1": 200,
    "/svc/node?version=0.0.1&x=y": 200,
    "/svc/node?version=v9": 404,
    "/svc/node?version=": 404,
    "/svc/node/services": 200,
    "/svc/node/services?a=%00": 200,
    "/svc/node/health": None,
    "/svc/node/health?partial_status=abc": 400,
    "/svc/node/services/none/health": 404,
    "http://other.example/svc/node": 200,
    "/livez": 200,
    "/openapi.json": 200,
}
NOT_FOUND_TARGETS = ("/svc", "/svc/", "/svc/node/", "/nothing", "/svc//node", "/svc/../svc/node", "/svc/node/healthz")
OPERATOR_TARGETS = (
    "/details",
    "/details/db",
    "/details?id=db&recent_checks=1",
    "/details/%2e%2e",
    "/badge/db.svg",
    "/badge/node.svg",
    "/badge/%00.svg",
    "/static/page.js",
    "/page/changes",
    "/page/changes?after=x&id=",
    "/static/..%2fpage.js",
)
# They need a database or do not end: in this process they are only sent without the token.
AGENT_TARGETS = (
    "/",
    "/metrics",
    "/events",
    "/events?after=x",
    "/page/events",
    "/history",
    "/history?id=db",
    "/history?id=db&resolution=minutes",
)
_AGENT_PATH = re.compile(rb"/(metrics|events|history)?")
HEADERS = (
    "User-Agent: fuzz/1",
    "Accept: */*",
    "Accept-Encoding: gzip, br",
    "X-Forwarded-For: 10.0.0.1",
    "Cookie: a=b; c=d",
    "Origin: https://example.com",
    "X-Empty:",
    "X-Tab:\tvalue\t",
    "X-Obs: \u00e9\u00ff",
    "Connection: keep-alive",
    "X-Long: " + "v" * 900,
)
CHUNKED_BODIES = (b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n")
SPECIAL_BYTES = b"\x00\r\n\t :;,/?#%\x7f\x80\xff0159aHGT"
# The parts of the corpus, most of which have errors, to be put together at random.
_PARTS = [case.sent.partition(b"\r\n\r\n") for case in CORPUS]
REQUEST_LINES = sorted({head.partition(b"\r\n")[0] for head, _, _ in _PARTS})
HEADER_LINES = sorted({line for head, _, _ in _PARTS for line in head.split(b"\r\n")[1:]})
BODIES = sorted({body for _, _, body in _PARTS} | {b"x" * 70_000})


class Generator:
    def __init__(self, rng: random.Random, statuses: dict[str, str], operator_targets: tuple[str, ...]) -> None:
        self._rng = rng
        self._statuses = statuses
        self._operator_targets = operator_targets

    def sequence(self) -> Sequence:
        rng = self._rng
        count = rng.choice((1, 1, 2, 3, 5, 8))
        if rng.random() < 0.3:
            return self._correct(count)
        requests = [self._any_request() for _ in range(count)]
        sent = b"".join(requests)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
            sent = self._mutated(sent)
        return Sequence(sent=sent, requests=count)

    def _correct(self, count: int) -> Sequence:
        requests, codes = [], []
        for _ in range(count):
            sent, code, is_last = self._correct_request()
            requests.append(sent)
            codes.append(code)
            if is_last:
                break
        return Sequence(sent=b"".join(requests), requests=len(requests), codes=tuple(codes))

    def _correct_request(self) -> tuple[bytes, int, bool]:
        """The bytes, the expected code, and whether the connection closes after the response."""
        rng = self._rng
        method, kind = rng.choice(METHODS), rng.random()
        if kind < 0.2:
            target, code = self._service_health()
        elif kind < 0.8:
            target, known = rng.choice(list(TARGETS.items()))
            code = self._node_health() if known is None else known
        elif kind < 0.9:
            target, code = rng.choice(NOT_FOUND_TARGETS), 404
        else:
            target, code = rng.choice((*self._operator_targets, *AGENT_TARGETS)), 401
        is_registered = code not in (401, 404) or target == HEALTH.format("none")
        if method not in ("GET", "HEAD") and is_registered:
            code = 405
        lines = [f"Host: {rng.choice(('n', 'node.example:8420', '127.0.0.1', '[::1]:80', ''))}"]
        lines += rng.sample(HEADERS, rng.randrange(4))
        body, is_last = b"", False
        if rng.random() < 0.15:
            body = b"b" * rng.choice((1, 5, 1000, 60_000)) if rng.random() < 0.6 else b""
            if body:
                lines.append(f"Content-Length: {len(body)}")
            else:
                lines.append("Transfer-Encoding: chunked")
                body, is_last = rng.choice(CHUNKED_BODIES), True
        if rng.random() < 0.05:
            lines.append("Connection: close")
            is_last = True
        head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
        empty_lines = b"\r\n" * (rng.random() < 0.05)
        return empty_lines + f"{method} {target} HTTP/1.1\r\n".encode() + head + b"\r\n" + body, code, is_last

    def _service_health(self) -> tuple[str, int]:
        service = self._rng.choice(list(self._statuses))
        encoded = self._rng.choice((service, f"%{ord(service[0]):02x}{service[1:]}"))
        return HEALTH.format(encoded), CODES[self._statuses[service]]

    def _node_health(self) -> int:
        return 200 if all(status == "Up" for status in self._statuses.values()) else 206

    def _any_request(self) -> bytes:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.4:
            return self._correct_request()[0]
        if kind < 0.6:
            line = rng.choice(REQUEST_LINES)
        else:
            line = b" ".join((rng.choice(METHODS).encode(), self._any_target(), b"HTTP/1.1"))
        lines = [b"Host: n"] * (rng.random() < 0.95)
        lines += [line.encode("latin-1") for line in rng.sample(HEADERS, rng.randrange(3))]
        lines += rng.choices(HEADER_LINES, k=rng.choice((0, 1, 1, 2)))
        if rng.random() < 0.1:
            lines.append(b"Authorization: Bearer " + TOKEN.encode())
        if rng.random() < 0.01:
            lines += [b"X: y"] * rng.choice((90, 101, 300))
        rng.shuffle(lines)
        body = rng.choice(BODIES) if rng.random() < 0.3 else b""
        end = b"\r\n" if rng.random() < 0.95 else rng.choice((b"\n", b"\r", b"\r\r\n"))
        return end.join([line, *lines, b"", body])

    def _any_target(self) -> bytes:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.7:
            return rng.choice(list(TARGETS)).encode()
        if kind < 0.85:
            return rng.choice(self._operator_targets).encode()
        return b"/" + bytes(rng.choice(b"svcnode/%2e.?=&;~\x80") for _ in range(rng.randrange(40)))

    def _mutated(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                return data[:at] + bytes([rng.choice(SPECIAL_BYTES)]) + data[at + 1 :]
            case 1:
                return data[:at] + bytes([rng.choice(SPECIAL_BYTES)]) + data[at:]
            case 2:
                return data[:at] + data[at + rng.randrange(1, 9) :]
            case 3:
                return data[:at]
            case 4:
                part = data[at : at + rng.randrange(1, 30)]
                return data[:at] + part * rng.randrange(2, 5) + data[at:]
            case _:
                return data[:at] + rng.randbytes(rng.randrange(1, 5)) + data[at:]


def segments(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The data in random pieces: whole requests, a few bytes, or any size."""
    if rng.random() < 0.3:
        yield from (piece for piece in re.split(rb"(?<=\r\n\r\n)", data) if piece)
        return
    largest = rng.choice((1, 3, 20, 200, 5000)) if len(data) < 2000 else rng.choice((200, 5000, 40_000))
    at = 0
    while at < len(data):
        size = rng.randrange(1, largest + 1)
        yield data[at : at + size]
        at += size


# ---- the server in this process


class FuzzedTransport:
    """Records what is written. With a generator of random numbers, the client does not read for some time."""

    def __init__(self, rng: random.Random | None) -> None:
        self.written: list[bytes] = []
        self.is_reading = True
        self.is_closed = False
        self.is_write_paused = False
        self.protocol: Connection
        self._rng = rng

    def write(self, data: bytes) -> None:
        assert not self.is_closed, "written after close"
        self.written.append(bytes(data))
        if self._rng is not None and not self.is_write_paused and self._rng.random() < 0.03:
            self.is_write_paused = True
            self.protocol.pause_writing()

    def read(self) -> None:
        if self.is_write_paused and not self.is_closed:
            self.is_write_paused = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 1 if self.is_write_paused else 0

    def get_extra_info(self, name: str) -> FuzzedTransport:
        assert name == "socket"
        return self

    def fileno(self) -> int:
        return -1  # sendfile fails, and the transport writes everything


class NoCache(ResponseCache):
    """Finds no request, so that each one is parsed."""

    def get(self, raw_request: bytes, now_s: float) -> bytes | None:
        return None


class FuzzedOperatorApp(OperatorApp):
    """The real handlers; the body is replaced, because it changes from one response to the next."""

    async def handle(self, request: Request) -> Response | StreamingResponse:
        if _AGENT_PATH.fullmatch(request.path) is not None:
            return make_response(200, b"{}")
        response = await super().handle(request)
        assert isinstance(response, Response)
        return make_response(response.code, b"{}")


class ServerInProcess:
    """The HTTP server without sockets. Use it on a running event loop."""

    def __init__(self) -> None:
        self._harness = OperatorHarness()
        self.node: NodeState = self._harness.node
        self._handles = {name: self.node.register(name) for name in SERVICES}
        self.statuses: dict[str, str] = {}
        for name, status in SERVICES.items():
            self.set_status(name, status)
        for number in range(MORE_SERVICES):
            self.node.register(f"more-{number}", description="A service that makes the list longer").up()
        self.node.overrides.started()
        auth = OperatorAuth(Address(scheme="http", host="127.0.0.1", port=1), TOKEN, trusts_loopback=False)
        self._mount = Mount(FuzzedOperatorApp(self._harness.context, auth))
        self._cached = ServerState(ResponseCache(self.node, ("/svc",)), ServerLimits())
        self._uncached = ServerState(NoCache(self.node, ("/svc",)), ServerLimits())

    def set_status(self, name: str, status: str) -> None:
        self.statuses[name] = status
        handle = self._handles[name]
        {"Up": handle.up, "Initializing": handle.initializing, "Down": handle.down}[status]()

    async def respond(self, pieces: Iterator[bytes], rng: random.Random | None, *, cached: bool = True) -> bytes:
        """Everything that the server sends, until it closes after the end of the input."""
        transport = FuzzedTransport(rng)
        connection = transport.protocol = Connection(self._cached if cached else self._uncached, self._mount)
        connection.connection_made(cast("asyncio.Transport", transport))
        for piece in pieces:
            await self._wait(transport, lambda: transport.is_reading or transport.is_closed)
            if transport.is_closed:
                break
            connection.data_received(piece)
        # A client that ends its input is still answered.
        await self._wait(transport, lambda: transport.is_closed or self._is_settled(connection, transport))
        if not transport.is_closed and connection.eof_received():
            await self._wait(transport, lambda: transport.is_closed)
        connection.connection_lost(None)
        return b"".join(transport.written)

    @staticmethod
    def _is_settled(connection: Connection, transport: FuzzedTransport) -> bool:
        is_waiting = connection.phase in (Phase.QUEUED, Phase.HANDLING)
        return transport.is_reading and not is_waiting and not transport.is_write_paused

    @staticmethod
    async def _wait(transport: FuzzedTransport, condition: Callable[[], bool]) -> None:
        for turn in range(TURNS):
            if condition():
                return
            transport.read()
            await asyncio.sleep(0 if turn < 1000 else 0.001)
        raise AssertionError("hang: the connection neither reads nor closes")


# ---- responses

_DATE = re.compile(rb"\r\nDate: [^\r]*")
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True)
class Answers:
    """The responses to one sequence."""

    codes: tuple[int, ...]
    raw: bytes = field(repr=False)


def parse_answers(raw: bytes) -> Answers:
    """Check the framing. Whether a 100 is sent depends on when the body arrives, so it is left out."""
    raw = _DATE.sub(b"", raw).replace(_CONTINUE, b"")
    codes, rest, is_closed = [], raw, False
    while rest:
        assert not is_closed, "a response after Connection: close"
        head, separator, rest = rest.partition(b"\r\n\r\n")
        assert separator, f"an incomplete response: {head[:200]!r}"
        assert head.startswith(b"HTTP/1.1 "), f"not a response: {head[:200]!r}"
        codes.append(int(head[9:12]))
        is_closed = b"\r\nConnection: close" in head
        length = _LENGTH.search(head)
        is_without_body = not rest or rest.startswith(b"HTTP/1.1 ")  # of HEAD
        if length is not None and not is_without_body:
            size = int(length[1])
            assert len(rest) >= size, "a body shorter than its Content-Length"
            rest = rest[size:]
    return Answers(tuple(codes), raw)


def problem_of(answers: Answers, sequence: Sequence) -> str | None:
    if sequence.codes is not None and answers.codes != sequence.codes:
        return f"{answers.codes} instead of {sequence.codes}"
    if unexplained := [code for code in answers.codes if code >= 500 and code not in EXPLAINED_5XX]:
        return f"unexplained {unexplained}"
    return None


# ---- the campaign


@dataclass
class FuzzReport:
    seed: int
    requests: int = 0
    socket_requests: int = 0
    corpus_cases: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add_problem(self, sequence: Sequence | bytes, problem: str) -> None:
        sent = sequence if isinstance(sequence, bytes) else sequence.sent
        self.problems.append(f"{problem}\n  bytes: {sent!r}")

    @property
    def is_over(self) -> bool:
        return len(self.problems) >= 10


async def fuzz_in_process(report: FuzzReport, requests: int) -> None:
    rng, server = random.Random(report.seed), ServerInProcess()
    generator = Generator(rng, server.statuses, OPERATOR_TARGETS)
    while report.requests < requests and not report.is_over:
        if rng.random() < 0.01:
            server.set_status(rng.choice(list(SERVICES)), rng.choice(list(CODES)))
        sequence = generator.sequence()
        report.requests += sequence.requests
        try:
            whole = parse_answers(await server.respond(iter([sequence.sent]), None, cached=False))
            split = parse_answers(await server.respond(segments(sequence.sent, rng), rng))
        except Exception as exc:  # noqa: BLE001  a crash is a finding
            report.add_problem(sequence, f"{type(exc).__name__}: {exc}")
            continue
        report.codes.update(whole.codes)
        if whole.raw != split.raw:
            report.add_problem(sequence, f"difference: whole {whole.codes}, in segments with the cache {split.codes}")
        elif (problem := problem_of(whole, sequence)) is not None:
            report.add_problem(sequence, problem)


async def check_corpus(report: FuzzReport) -> None:
    """Each case whole, byte by byte (a long one in larger pieces), and after a request that is cached."""
    server, before = ServerInProcess(), b"GET /svc/node HTTP/1.1\r\nHost: n\r\n\r\n"
    for case in CORPUS:
        report.corpus_cases += 1
        step = 1 if len(case.sent) < 2000 else 101
        variants = {
            "whole": ([case.sent], case.codes),
            "in pieces": ([case.sent[at : at + step] for at in range(0, len(case.sent), step)], case.codes),
            "after another request": ([before, case.sent], (200, *case.codes)),
            "pipelined": ([before + case.sent], (200, *case.codes)),
        }
        for name, (pieces, expected) in variants.items():
            try:
                codes = parse_answers(await server.respond(iter(pieces), None)).codes
            except Exception as exc:  # noqa: BLE001  a crash is a finding
                report.add_problem(case.sent, f"{case.name}, {name}: {type(exc).__name__}: {exc}")
                continue
            if codes != expected:
                report.add_problem(case.sent, f"{case.name}, {name}: {codes} instead of {expected}")


# ---- over sockets


def agent_config() -> str:
    lines = [
        '[node]\nname = "validator-7"\nversion = "v1.4.2"',
        '[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"',
        f'[security]\ntrust_loopback = false\noperator_token = "{TOKEN}"',
    ]
    lines += [f'[[services]]\nid = "{name}"\nstatus = "{status}"' for name, status in SERVICES.items()]
    lines += [f'[[services]]\nid = "more-{number}"\nstatus = "Up"' for number in range(MORE_SERVICES)]
    return "\n".join(lines)


async def exchange(port: int, pieces: Iterator[bytes], *, pause: bool) -> bytes:
    """Send all pieces, end the input, and read until the server closes."""
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024 * 1024)
        try:
            received = asyncio.ensure_future(reader.read(-1))
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if pause:
                        await asyncio.sleep(0)
                writer.write_eof()
            except OSError:
                pass  # the server has sent an error and closed
            return await received
        finally:
            writer.close()


async def socket_problem(port: int, pieces: list[bytes], sent: Sequence, expected: Answers | None) -> str | None:
    try:
        answers = parse_stream_answers(await exchange(port, iter(pieces), pause=True))
    except ConnectionError as exc:
        # Only allowed if the input goes on after the last response.
        return str(exc) if expected is not None and b"\r\nConnection: close" not in expected.raw else None
    except Exception as exc:  # noqa: BLE001  a hang or a crash is a finding
        return f"{type(exc).__name__}: {exc}"
    if expected is not None and answers.codes != expected.codes:
        return f"{answers.codes} instead of {expected.codes}"
    return problem_of(answers, sent)


async def fuzz_over_sockets(report: FuzzReport, port: int, requests: int, workers: int = 8) -> None:
    """Compared with the server in this process; the operator's responses by their code."""
    rng, server = random.Random(report.seed + 1), ServerInProcess()
    comparable = Generator(rng, server.statuses, OPERATOR_TARGETS)
    operator = Generator(rng, server.statuses, OPERATOR_TARGETS + 6 * AGENT_TARGETS)

    async def work() -> None:
        while report.socket_requests < requests and not report.is_over:
            is_comparable = rng.random() < 0.9
            sequence = (comparable if is_comparable else operator).sequence()
            report.socket_requests += sequence.requests
            pieces = list(segments(sequence.sent, rng))[:500]
            sent = Sequence(sent=b"".join(pieces), requests=sequence.requests)
            expected = None
            if is_comparable:
                expected = parse_answers(await server.respond(iter([sent.sent]), None, cached=False))
            if (problem := await socket_problem(port, pieces, sent, expected)) is not None:
                report.add_problem(sent, f"over a socket: {problem}")

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


def parse_stream_answers(raw: bytes) -> Answers:
    """A response without a length is an event stream, and the last one."""
    head, separator, _ = raw.rpartition(b"Content-Type: text/event-stream")
    if not separator:
        return parse_answers(raw)
    start = head.rindex(b"HTTP/1.1 ")
    return Answers((*parse_answers(raw[:start]).codes, int(raw[start + 9 : start + 12])), raw)


def run_campaign(folder: Path, seed: int, requests: int, socket_requests: int) -> FuzzReport:
    report = FuzzReport(seed)
    asyncio.run(check_corpus(report))
    asyncio.run(fuzz_in_process(report, requests))
    if socket_requests and not report.is_over:
        with Agent(folder, config=agent_config()) as agent:
            port = agent.port
            agent.wait_until(lambda: agent.health() == 206)
            asyncio.run(fuzz_over_sockets(report, port, socket_requests))
            if agent.process.poll() is not None:
                report.problems.append(f"the node ended with exit code {agent.process.returncode}")
            report.problems += [line for line in agent.lines if "internal error" in line or "Traceback" in line]
            if (code := agent.stop()) != 0:
                report.problems.append(f"the node stopped with exit code {code}")
    return report


def main() -> int:
    parser = campaign_parser("fuzz", __doc__, requests=1_000_000, socket_requests=100_000)
    arguments = parser.parse_args()
    started_s = time.monotonic()
    with campaign_folder() as folder:
        report = run_campaign(folder, arguments.seed, arguments.requests, arguments.socket_requests)
    for problem in report.problems:
        print(problem)
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(report.codes.items()))
    print(f"seed {arguments.seed}, in {time.monotonic() - started_s:.0f} s")
    print(f"corpus: {report.corpus_cases} cases with a stated answer, each in 4 ways")
    print(f"requests in process: {report.requests:,}, each sequence with and without the cache ({codes})")
    print(f"requests over sockets: {report.socket_requests:,}")
    print(f"crashes, hangs, unexplained 5xx, wrong answers and differences: {len(report.problems)}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
