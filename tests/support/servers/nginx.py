"""nginx with a user, a password and a small connection limit."""

from __future__ import annotations

import socket
from base64 import b64encode
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.support.servers.base import PasswordServer
from tests.support.servers.connection_limit import all_connections_held
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

USER = "svcnode"
PASSWORD = "let-me-in"

# `user root`: its worker must read files in a folder that only the owner may enter. Ignored if not root.
_CONFIG = """\
user root;
daemon off;
worker_processes 1;
pid nginx.pid;
events {{ worker_connections {connections}; }}
http {{
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  {http}
}}
"""
_LEDGER = """
  default_type text/plain;
  auth_basic "ledger";
  auth_basic_user_file users;
  server { %s location = / { try_files /page =404; } }
"""


def nginx_command(folder: Path, http: str, *, connections: int = 64) -> list[str]:
    """`http` is that part of its configuration, which is written into the folder."""
    (folder / "nginx.conf").write_text(_CONFIG.format(http=http, connections=connections))
    return [program("nginx", "nginx-light"), "-p", f"{folder}/", "-c", "nginx.conf", "-e", "stderr"]


class NginxServer(PasswordServer):
    password = PASSWORD

    def url_with(self, password: str) -> str:
        return f"http://{USER}:{password}@{self.host}:{self.port}/"

    def command(self) -> Sequence[str]:
        listen = " ".join(f"listen {address}:{self.port};" for address in sorted({"127.0.0.1", self.host}))
        return nginx_command(self.folder, _LEDGER % listen, connections=16)

    def prepare(self) -> None:
        (self.folder / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
        (self.folder / "html").mkdir(exist_ok=True)
        (self.folder / "html" / "page").write_text("ok")

    def is_ready(self) -> bool:
        credentials = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return http_request(self.port, "/", headers={"Authorization": f"Basic {credentials}"}) == (200, "ok")

    def exhaust(self) -> AbstractContextManager[None]:
        """Hold all connections, each in the middle of a request. The next one is closed."""
        return all_connections_held(self._client)

    @contextmanager
    def _client(self) -> Iterator[bool]:
        with socket.create_connection((self.host, self.port)) as sock:
            yield _is_accepted(sock)


def _is_accepted(sock: socket.socket) -> bool:
    """Whether nginx waits for the rest of the request."""
    sock.settimeout(0.1)
    with suppress(ConnectionError):
        sock.sendall(b"GET / HTTP/1.1\r\n")
        try:
            sock.recv(1)
        except TimeoutError:
            return True
    return False
