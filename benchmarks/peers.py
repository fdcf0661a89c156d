"""The measured servers: command line and files of svcnode and its peers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks import nginx_config as any_nginx
from benchmarks.payloads import EXTRA_HEADERS, HEALTH, SERVICES, service_fields, services_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from benchmarks.processes import Command

_NODE_TOML = '[node]\nname = "validator-7"\nversion = "v1.4.2"\n\n[server]\ndrain = "0s"\n'
_FLAPPING_TOML = 'impact = "none"\ninterval = "500ms"\nstart_period = "0s"\nrise = 1\nfall = 1\n'


def nginx(service_count: int = 3) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        directives = [
            f"listen 127.0.0.1:{port};",
            *(f"add_header {name} {value};" for name, value in EXTRA_HEADERS.items()),
            f"location = {HEALTH} {{ return 200; }}",
            f"location = {SERVICES} {{ {_nginx_services(service_count, folder)} }}",
        ]
        return any_nginx.command(folder, " ".join(directives))

    return command


def _nginx_services(service_count: int, folder: Path) -> str:
    body = services_body(service_count)
    if len(body) <= any_nginx.MAX_WORD_BYTES:
        return f"return 200 '{body.decode()}';"
    file = folder / "services.json"
    file.write_bytes(body)
    return f"alias {file};"


def uvicorn(python: Path, app: str, *options: str) -> Command:
    fast = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    return lambda port, _: [python, "-m", "uvicorn", *fast, *options, "--port", str(port), app]


def granian(python: Path, app: str) -> Command:
    fast = ["--interface", "asgi", "--workers", "1", "--loop", "uvloop", "--no-ws", "--log-level", "warning"]
    return lambda port, _: [python, "-m", "granian", *fast, "--port", str(port), app]


def bare(python: Path) -> Command:
    return lambda port, _: [python, "-m", "benchmarks.bare_loop", str(port)]


def svcnode(python: Path, service_count: int = 3) -> Command:
    return svcnode_with(python, [{**service_fields(number), "status": "Up"} for number in range(service_count)])


def svcnode_with(python: Path, services: Iterable[Mapping[str, str]]) -> Command:
    """`svcnode serve` with these tables of services."""

    def command(port: int, folder: Path) -> list[str | Path]:
        file = folder / "svcnode.toml"
        file.write_text(_NODE_TOML + "".join(map(_service_toml, services)))
        return [python, "-m", "svcnode", "serve", "--config", file, "--listen", f"127.0.0.1:{port}"]

    return command


def probing_node(python: Path, service_count: int) -> Command:
    """`svcnode serve` with a file probe per service, except one whose status changes every second."""

    def command(port: int, folder: Path) -> list[str | Path]:
        file, restless = folder / "svcnode.toml", folder / "restless"
        restless.write_text("#!/bin/sh\nexit $(( $(date +%s) % 2 ))\n")
        restless.chmod(0o755)
        probes = [*[f"file:{file}"] * (service_count - 1), f"exec:{restless}"]
        tables = [_service_toml({**service_fields(number), "probe": probe}) for number, probe in enumerate(probes)]
        file.write_text(_NODE_TOML + "\n[security]\nallow_exec = true\n" + "".join(tables) + _FLAPPING_TOML)
        return [python, "-m", "svcnode", "serve", "--config", file, "--listen", f"127.0.0.1:{port}"]

    return command


def _service_toml(fields: Mapping[str, str]) -> str:
    return "\n[[services]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


def reporting_node(python: Path, service_count: int, reports_per_s: int) -> Command:
    numbers = (str(service_count), str(reports_per_s))
    return lambda port, _: [python, "-m", "benchmarks.node_server", str(port), *numbers]
