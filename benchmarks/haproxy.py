"""HAProxy as a checker: its configuration, and whether its checks succeed."""

from __future__ import annotations

import csv
from string import Template
from typing import TYPE_CHECKING

from benchmarks.provision import tool

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.processes import Command, Server
    from benchmarks.targets import Kind

STATUS_PATH = "/stats"

_CONF = Template("""
global
  nbthread 1
defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 10s
frontend status
  bind 127.0.0.1:$port
  stats enable
  stats uri $status_path
backend checked
  mode $kind
  $option
  $servers
""")
_OPTIONS: dict[Kind, str] = {"tcp": "", "http": "option httpchk GET /"}
_SUCCESSES: dict[Kind, str] = {"tcp": "L4OK", "http": "L7OK"}


def haproxy(kind: Kind, hosts: list[str], target_port: int) -> Command:
    """Checks the port on each host once per second."""

    def command(port: int, folder: Path) -> list[str | Path]:
        servers = (f"server s{number} {host}:{target_port} check inter 1s" for number, host in enumerate(hosts))
        file = folder / "haproxy.cfg"
        file.write_text(
            _CONF.substitute(
                port=port, status_path=STATUS_PATH, kind=kind, option=_OPTIONS[kind], servers="\n  ".join(servers)
            )
        )
        return [tool("haproxy"), "-db", "-f", file]

    return command


def ups(server: Server, kind: Kind) -> int:
    """The number of hosts whose last check succeeded."""
    _, page = server.get(f"{STATUS_PATH};csv")
    rows = csv.DictReader(page.decode().removeprefix("# ").splitlines())
    # A star precedes the last result while the next check runs.
    return sum(
        row["status"] == "UP" and row["check_status"].removeprefix("* ") == _SUCCESSES[kind]
        for row in rows
        if row["svname"].startswith("s")
    )
