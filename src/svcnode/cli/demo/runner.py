"""Runs the demo: five servers, the scenario, and the agent of `svcnode serve`."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import signal
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from svcnode.agent import logs
from svcnode.agent.agent import Agent
from svcnode.agent.logs import log_line
from svcnode.cli._args import program
from svcnode.cli.demo.checks import SERVICES, defaults
from svcnode.cli.demo.scenario import INITIAL_MODES, run_scenario
from svcnode.cli.demo.servers import SLOW_S, DemoServer
from svcnode.config import Override, load
from svcnode.config.sources import environment_keys
from svcnode.core.address import is_loopback
from svcnode.core.errors import ListenError, SvcnodeError
from svcnode.server.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from svcnode.cli.demo.scenario import ScenarioStep
    from svcnode.config import Settings
    from svcnode.config.keys import KeyPath
    from svcnode.core.address import Address

    PrintLine = Callable[[str], None]

PORTS_TRIED = 50


async def run_demo(
    listen: Address, print_line: PrintLine, *, is_port_given: bool, speed: float, environ: Mapping[str, str]
) -> int:
    """Runs until a stop signal; returns the exit code. Without a given port, the next free port is used."""
    address = free_address(listen, tries=1 if is_port_given else PORTS_TRIED)
    if address.port != listen.port and listen.port:
        print_line(f"{listen} is in use; using the next free port.\n")
    has_token = is_loopback(address.host) or "SVCNODE_SECURITY_OPERATOR_TOKEN" in environ
    token = None if has_token else secrets.token_hex(16)
    async with ScenarioRunner(print_line, speed) as runner:
        settings = settings_for(address, token, runner.ports, speed, environ)
        logs.configure(settings.log_level, settings.log_format)
        print_line(introduction(address, token, shlex.quote(program())))
        scenario = asyncio.create_task(runner.run())
        try:
            return await Agent(settings, lambda: _stop_on_reload(settings)).serve()
        finally:
            scenario.cancel()
            with suppress(asyncio.CancelledError):
                await scenario


class ScenarioRunner:
    """Starts the servers, applies the steps of the scenario to them, and closes them."""

    def __init__(self, print_line: PrintLine, speed: float) -> None:
        self._print_line = print_line
        self._speed = speed
        self._servers: dict[str, DemoServer] = {}

    @property
    def ports(self) -> dict[str, int]:
        return {name: server.port for name, server in self._servers.items()}

    async def __aenter__(self) -> Self:
        for service in SERVICES:
            server = self._servers[service.id] = service.server_class(slow_s=SLOW_S / self._speed)
            await server.set_mode(INITIAL_MODES[service.id])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    async def run(self) -> None:
        with suppress(BrokenPipeError):
            try:
                await run_scenario(self._apply_step, speed=self._speed)
            except SvcnodeError:
                _stop_agent()  # stdout cannot be written; the error is reported at the end
                raise
        _stop_agent()  # the reader of stdout is gone

    async def _apply_step(self, step: ScenarioStep) -> None:
        self._print_line(log_line("demo", step.text, time.time()))
        await self._servers[step.server].set_mode(step.mode)


def _stop_agent() -> None:
    signal.raise_signal(signal.SIGTERM)  # handled by the agent


def _stop_on_reload(settings: Settings) -> Settings:
    """The demo has no configuration to reload: SIGHUP stops it."""
    _stop_agent()
    return settings


# ---- address and settings


def free_address(address: Address, *, tries: int) -> Address:
    """The address, or the same host with the first free port after it."""
    *earlier, last = range(address.port, address.port + tries)
    for port in earlier:
        with suppress(ListenError):
            return _bind_and_release(address._replace(port=port))
    return _bind_and_release(address._replace(port=last))


def _bind_and_release(address: Address) -> Address:
    """The address with its actual port; raises `ListenError` if it cannot be bound."""
    with closing(bind(address)) as sock:
        return address._replace(port=sock.getsockname()[1])


def settings_for(
    address: Address, token: str | None, ports: Mapping[str, int], speed: float, environ: Mapping[str, str]
) -> Settings:
    """The settings of the demo; variables of the environment override some. None of them makes it write a file."""
    values: dict[KeyPath, object] = {
        ("node", "name"): "demo",
        ("server", "drain"): "0s",
        **{("defaults", key): value for key, value in defaults(speed).items()},
    }
    if token is not None:
        values["security", "operator_token"] = token
    for path in (path for name, (path, _) in environment_keys().items() if name in environ):
        values.pop(path, None)
    values |= {
        ("server", "listen"): str(address),
        ("history", "keep"): False,
        ("control", "enabled"): False,
        ("services",): [service.config_table(ports[service.id], speed) for service in SERVICES],
    }
    return load(None, environ, [Override(path, value, "svcnode demo") for path, value in values.items()])


def introduction(address: Address, token: str | None, command: str) -> str:
    host_port = str(address).removeprefix("http://")
    page = f"{address}/" if token is None else f"{address}/ (any user name, password {token})"
    token_option = "" if token is None else f" --token {token}"
    return f"""\
svcnode demo: a node with five services, each a small real server on this machine. They start,
become slow, fail and recover in a scenario of one minute that repeats. The node checks each every second.

  Open  {page}
  or run in another terminal:
        {command} watch {host_port}
        {command} explain {host_port} --service indexer{token_option}
        curl -i {address}/svc/node/health
        curl -s {address}/svc/node/services

Three services are not ready at the start. Ctrl-C stops the demo; no files remain.
"""
