"""nginx: a web server that is itself several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.servers.asking import ask
from tests.support.servers.base import RealServer
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFIG = """\
daemon off;
worker_processes 2;
pid nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  default_type text/plain;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{
    listen {host}:{port};
    location = / {{ return 200 "ok"; }}
    location / {{ return 404 "no such page"; }}
  }}
}}
"""


class NginxServer(RealServer):
    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    def command(self) -> Sequence[str]:
        return [program("nginx", "nginx-light"), "-p", f"{self.folder}/", "-c", "nginx.conf", "-e", "stderr"]

    def prepare(self) -> None:
        (self.folder / "nginx.conf").write_text(_CONFIG.format(host=self.host, port=self.port))

    def is_ready(self) -> bool:
        return ask(self.port, "/") == (200, "ok")
