"""Puts the demo on: five servers, the script, and the agent as `svcnode serve` has it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.agent import Agent
from svcnode.config import Override, load
from svcnode.core.errors import ListenError, SvcnodeError
from svcnode.demo.scenario import INITIAL_MODES, run_scenario
from svcnode.demo.servers import SLOW_S, DemoServer
from svcnode.demo.services import SERVICES, defaults
from svcnode.operator.auth import is_loopback
from svcnode.server.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from svcnode.config import Settings
    from svcnode.core.address import Address
    from svcnode.demo.scenario import ScenarioStep

    Say = Callable[[str], None]

PORTS_TRIED = 50


async def run_demo(listen: Address, say: Say, *, is_port_given: bool, speed: float = 1.0) -> int:
    """Until told to stop; returns the exit code. Where no port was asked for, the next free one will do."""
    address = free_address(listen, tries=1 if is_port_given else PORTS_TRIED)
    if address.port != listen.port and listen.port:
        say(f"Something listens on {listen} already, so this is on the next free port.\n")
    token = None if is_loopback(address.host) else secrets.token_hex(16)
    async with ScenarioRunner(say, speed) as stage:
        settings = settings_for(address, token, stage.ports, speed)
        say(introduction(address, token))
        playing = asyncio.create_task(stage.run())
        try:
            return await Agent(settings, lambda: _stop_on_reload(settings)).serve()
        finally:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing


class ScenarioRunner:
    """The servers, from their first mood to their end."""

    def __init__(self, say: Say, speed: float) -> None:
        self._print_line = say
        self._speed = speed
        self._servers: dict[str, DemoServer] = {}

    @property
    def ports(self) -> dict[str, int]:
        return {name: server.port for name, server in self._servers.items()}

    async def __aenter__(self) -> Self:
        for role in SERVICES:
            server = self._servers[role.id] = role.server_class(slow_s=SLOW_S / self._speed)
            await server.set_mode(INITIAL_MODES[role.id])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    async def run(self) -> None:
        with suppress(BrokenPipeError):
            try:
                await run_scenario(self._apply_step, speed=self._speed)
            except SvcnodeError:
                _stop_agent()  # what is said cannot be written any more; why, is told when all is over
                raise
        _stop_agent()  # nobody reads any more what is said

    async def _apply_step(self, act: ScenarioStep) -> None:
        self._print_line(f"{time.strftime('%H:%M:%S')} {'script':7} {act.text}")
        await self._servers[act.server].set_mode(act.mode)


def _stop_agent() -> None:
    signal.raise_signal(signal.SIGTERM)  # which the agent heeds


def _stop_on_reload(settings: Settings) -> Settings:
    """Asked for when the agent is to reload, which here means that the terminal was closed."""
    _stop_agent()
    return settings


# ---- where, and how


def free_address(wanted: Address, *, tries: int) -> Address:
    """The address itself or, from there on, the first with a port that nobody listens on."""
    *earlier, last = range(wanted.port, wanted.port + tries)
    for port in earlier:
        with suppress(ListenError):
            return _bind_and_release(replace(wanted, port=port))
    return _bind_and_release(replace(wanted, port=last))


def _bind_and_release(address: Address) -> Address:
    """With the port that is taken where any would do; raises `ListenError` where nobody can listen."""
    with closing(bind(address)) as sock:
        return replace(address, port=sock.getsockname()[1])


def settings_for(address: Address, token: str | None, ports: Mapping[str, int], speed: float) -> Settings:
    """As from a file; nothing of the environment, and nothing that would be kept on the disk."""
    said: dict[tuple[str, ...], object] = {
        ("node", "name"): "demo",
        ("server", "listen"): str(address),
        ("server", "drain"): "0s",
        ("history", "keep"): False,
        ("defaults",): defaults(speed),
        ("services",): [role.config_table(ports[role.id], speed) for role in SERVICES],
    }
    if token is not None:
        said["security", "operator_token"] = token
    return load(None, {}, [Override(path, value, "the demo") for path, value in said.items()])


def introduction(address: Address, token: str | None) -> str:
    place = str(address).removeprefix("http://")
    page = f"{address}/" if token is None else f"{address}/ (any user name; the password is {token})"
    more = "" if token is None else f" --token {token}"
    return f"""\
svcnode demo: a node with five services, each a small real server on this machine. They start,
become slow, go down and come back by a script of a minute, and the node looks at them every second.

  Open  {page}
  or try in another terminal:
        svcnode watch {place}
        svcnode explain indexer --url {place}{more}
        curl -i {address}/svc/node/health
        curl -s {address}/svc/node/services

Three of them begin by not being ready. Ctrl-C ends it, and nothing is left behind.
"""
