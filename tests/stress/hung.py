"""Many services hang at once, and recover at once: how soon the node says so, and what others notice.

`python -m tests.stress.hung` runs `svcnode serve` with 1,000 services on a server that stops to answer, and 100 on one
that does not. Prints how long after the fault the last service is Down, how long after its end the last one is Up, and
the limits of docs/operate.md.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from svcnode.node.scheduler import JITTER
from tests.stress.campaigns import campaign_folder, campaign_parser, machine
from tests.support.ports import free_port
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FALL, RISE = 3, 2
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HangingServer:
    """Answers every request while `answers` is set. Counts the connections that are open at once."""

    def __init__(self) -> None:
        self.port = free_port()
        self.answers = True
        self.open = self.most_open = 0

    def connect(self) -> asyncio.Protocol:
        return Connection(self)


class Connection(asyncio.Protocol):
    """One request, which is small enough to arrive at once."""

    def __init__(self, server: HangingServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.open += 1
        self._server.most_open = max(self._server.most_open, self._server.open)

    def data_received(self, _data: bytes) -> None:
        if self._server.answers:
            self._transport.write(RESPONSE)
            self._transport.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._server.open -= 1


@contextmanager
def serving(*servers: HangingServer) -> Iterator[None]:
    """All in one event loop, in a thread."""
    loop, started, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def run() -> None:
        listening = [
            await loop.create_server(server.connect, "127.0.0.1", server.port, backlog=4096) for server in servers
        ]
        started.set()
        await ended.wait()
        for one in listening:
            one.close()

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=run_loop, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


class Times(NamedTuple):
    down_s: float  # until the last one was Down
    up_s: float  # until the last one was Up again
    most_open: int  # connections at once to the server that hung
    disturbed: int  # of the others, services that were not Up all the time


def run_campaign(folder: Path, *, count: int, good: int, interval_s: float, timeout_s: float) -> Times:
    hanging, healthy = HangingServer(), HangingServer()
    defaults = f'[defaults]\ninterval = "{interval_s:g}s"\ntimeout = "{timeout_s:g}s"\nfall = {FALL}\nrise = {RISE}\n'
    urls = [f"http://127.0.0.1:{hanging.port}/{number}" for number in range(count)]
    urls += [f"http://127.0.0.1:{healthy.port}/{number}" for number in range(good)]
    services = "".join(f'[[services]]\nid = "{number}"\nprobe = "{url}"\n' for number, url in enumerate(urls))
    disturbed: set[str] = set()

    def wait_for(status: str) -> float:
        """Of the services that hang. Returns the seconds until then."""
        began_s = time.monotonic()

        def is_reached() -> bool:
            statuses = list(agent.statuses().items())
            disturbed.update(name for name, value in statuses[count:] if value != "Up")
            return {value for _, value in statuses[:count]} == {status}

        agent.wait_until(is_reached)
        return time.monotonic() - began_s

    listen = ("--listen", "127.0.0.1:0", "--log-format", "json")
    with serving(hanging, healthy), Agent(folder, *listen, config=defaults + services) as agent:
        wait_for("Up")
        agent.wait_until(lambda: set(agent.statuses().values()) == {"Up"})
        time.sleep(interval_s)  # the first checks are spread over 2 s, later ones over the interval
        disturbed.clear()
        hanging.answers, hanging.most_open = False, 0
        down_s = wait_for("Down")
        time.sleep(interval_s)
        hanging.answers = True
        return Times(down_s, wait_for("Up"), hanging.most_open, len(disturbed))


def main() -> None:
    parser = campaign_parser("hung", __doc__, services=1000, good=100, interval=10.0, timeout=3.0)
    args = parser.parse_args()
    print(machine())
    with campaign_folder() as folder:
        options = {"interval_s": args.interval, "timeout_s": args.timeout}
        times = run_campaign(folder, count=args.services, good=args.good, **options)
    slack_s = JITTER * args.interval
    down_s = args.interval + FALL * args.timeout + slack_s
    up_s = args.interval + (RISE - 1) * args.interval / 5 + slack_s
    print(f"all Down after {times.down_s:.1f} s (limit {down_s:.1f}), Up after {times.up_s:.1f} s (limit {up_s:.1f})")
    print(f"at most {times.most_open} checks hung at once; services of {args.good} others not Up: {times.disturbed}")


if __name__ == "__main__":
    main()
