"""A real nginx as a proxy: in front of a node, as in the docs, and with a cache."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, is_listening
from tests.support.servers.base import wait_until
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """
daemon off;
pid nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{ listen 127.0.0.1:{port}; {location} }}
}}
"""


@contextmanager
def nginx_in_front_of(agent: Agent, location: str, node: str = "127.0.0.1:8420") -> Iterator[int]:
    """Forwards requests to the agent as `location` configures; yields the port of nginx."""
    with nginx_with(agent.config_file.parent, location.replace(node, f"127.0.0.1:{agent.port}")) as port:
        yield port


@contextmanager
def nginx_with(folder: Path, location: str) -> Iterator[int]:
    """Yields the port of nginx."""
    port = free_port()
    (folder / "nginx.conf").write_text(_CONFIG.format(port=port, location=location))
    command = [program("nginx", "nginx-light"), "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr"]
    proxy = subprocess.Popen(command)
    try:
        wait_until(lambda: is_listening(port), "nginx listens")
        yield port
    finally:
        proxy.terminate()
        proxy.wait(DEADLINE_S)
