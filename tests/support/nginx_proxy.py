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


_CACHE_CONFIG = """
user root;
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
  proxy_cache_path cache keys_zone=zone:1m;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{origin};
      proxy_cache zone;
      proxy_cache_key {key};
      proxy_cache_valid 200 1h;
      proxy_cache_use_stale error timeout;
      {extra}
    }}
  }}
}}
"""


@contextmanager
def nginx_cache(folder: Path, origin: int, *, key: str = "$request_uri", extra: str = "") -> Iterator[int]:
    """Caches the responses of the origin, a port, and goes on when it is dead. Yields the port of nginx."""
    port = free_port()
    (folder / "nginx.conf").write_text(_CACHE_CONFIG.format(port=port, origin=origin, key=key, extra=extra))
    command = [program("nginx", "nginx-light"), "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr"]
    proxy = subprocess.Popen(command)
    try:
        wait_until(lambda: is_listening(port), "nginx listens")
        yield port
    finally:
        proxy.terminate()
        proxy.wait(DEADLINE_S)
