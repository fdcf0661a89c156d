"""A real nginx as a proxy: in front of a node, as in the docs, and with a cache."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, is_listening
from tests.support.servers.base import wait_until
from tests.support.servers.nginx import nginx_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def nginx_in_front_of(agent: Agent, location: str, node: str = "127.0.0.1:8420") -> Iterator[int]:
    """Forwards requests to the agent as `location` configures; yields the port of nginx."""
    with nginx_with(agent.config_file.parent, location.replace(node, f"127.0.0.1:{agent.port}")) as port:
        yield port


@contextmanager
def nginx_with(folder: Path, location: str) -> Iterator[int]:
    """Yields the port of nginx."""
    port = free_port()
    with running_nginx(folder, f"server {{ listen 127.0.0.1:{port}; {location} }}", port):
        yield port


@contextmanager
def running_nginx(folder: Path, http: str, *ports: int) -> Iterator[None]:
    """With this part of its configuration, which makes it listen on the ports."""
    process = subprocess.Popen(nginx_command(folder, http))
    try:
        wait_until(lambda: all(map(is_listening, ports)), "nginx listens")
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
