"""The configuration of an nginx with one worker and all files in one folder."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from benchmarks.provision import tool

if TYPE_CHECKING:
    from pathlib import Path

MAX_WORD_BYTES = 4000  # in its configuration; a longer body is served from a file

_CONF = Template("""
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid $folder/pid;
error_log stderr;
events { worker_connections 8192; }
http {
  client_body_temp_path $folder/body;
  proxy_temp_path $folder/proxy;
  fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi;
  scgi_temp_path $folder/scgi;
  access_log off;
  server_tokens off;
  keepalive_requests 1000000000;
  sendfile on;
  tcp_nopush on;
  open_file_cache max=16;
  default_type application/json;
  server { $server }
}
""")


def command(folder: Path, server: str) -> list[str | Path]:
    """The command line of an nginx with these directives in its server block."""
    file = folder / "nginx.conf"
    file.write_text(_CONF.substitute(folder=folder, server=server))
    return [tool("nginx"), "-e", "stderr", "-c", file]
