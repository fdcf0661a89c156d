"""Errors of the control socket, its clients and its log lines."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from svcnode.agent.control import ControlSocket, in_use_text
from svcnode.api.spec import Request
from svcnode.config import load
from svcnode.control.client import ControlClient, _result, _unreachable
from svcnode.control.owner import ConfiguredControlClient
from svcnode.core.errors import ConfigError, ControlError, ControlUnreachableError
from svcnode.server.server import HttpServer
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.control.types import NodeDocument
    from svcnode.node.node_state import NodeState
    from tests.wording.conftest import Snapshot


CONFIG = """
[[services]]
id = "in-the-file"
status = "Up"
[[services]]
id = "indexer"
probe = "heartbeat:30s"
"""
TTL = {"ttl": "15s"}
REQUESTS: list[tuple[str, str, object, dict[bytes, bytes]]] = [
    ("GET", "/v2", None, {}),
    ("POST", "/v1/services", {}, {}),
    ("POST", "/v1/drain", {}, {}),
    ("GET", "/v1/drain", None, {}),
    ("PUT", "/v1/maintenance", {"reasn": ""}, {}),
    ("PUT", "/v1/maintenance", {"reason": 1}, {}),
    ("PUT", "/v1/maintenance", {"reason": None}, {}),
    ("PUT", "/v1/maintenance", {"reason": "x" * 1001}, {}),
    ("PUT", "/v1/maintenance", {"reason": "\x1b[2J"}, {}),
    ("PUT", "/v1/maintenance", [], {}),
    ("PUT", "/v1/maintenance", b"{", {}),
    ("PUT", "/v1/maintenance", b'{"reason": "\\ud800"}', {}),
    ("PUT", "/v1/planned_maintenance", {}, {}),
    ("PUT", "/v1/planned_maintenance", {"from": "2026-12-01T22:00:00Z"}, {}),
    ("PUT", "/v1/planned_maintenance", {"from": "2026-12-01 22:00", "until": "tomorrow"}, {}),
    ("PUT", "/v1/planned_maintenance", {"from": "2026-12-01T22:00:00Z", "until": "tomorrow"}, {}),
    *(
        ("PUT", "/v1/planned_maintenance", {"from": begin, "until": end}, {})
        for begin, end in (
            ("2099-12-01T22:00:00Z", "2099-12-01T22:00:00Z"),
            ("2099-12-01T22:00:00Z", "2100-12-01T22:00:00Z"),
            ("2099-12-01T22:00:00Z", "2099-12-01T23:00:00Z"),
        )
    ),
    ("PUT", "/v1/services/a/ack", {}, {}),
    ("PUT", "/v1/services/in-the-file/ack", {}, {}),
    ("PUT", "/v1/services/indexer/ack", {"until": "tomorrow"}, {}),
    ("PUT", "/v1/services/indexer/ack", {"until": "2099-12-01T22:00:00Z"}, {}),
    ("PUT", "/v1/drain", {}, {b"if-match": b"1"}),
    ("PUT", "/v1/drain", {}, {b"if-match": b'"1"'}),
    ("PUT", "/v1/drain", {}, {b"if-none-match": b'"1"'}),
    ("PUT", "/v1/issues/keys", {}, {}),
    ("PUT", "/v1/issues/keys", {"reason": "expired"}, {b"if-match": b'"7"'}),
    ("PUT", "/v1/issues/keys", {}, {b"if-none-match": b"*"}),
    ("PUT", "/v1/issues/%ff", {}, {}),
    ("PUT", "/v1/issues/%0a", {}, {}),
    ("PUT", f"/v1/issues/{'x' * 101}", {}, {}),
    ("PUT", "/v1/reload", None, {}),
    ("GET", "/v1/services/a", None, {}),
    ("PUT", "/v1/services/in-the-file", TTL, {}),
    ("DELETE", "/v1/services/in-the-file", None, {}),
    ("PUT", "/v1/services/in-the-file", TTL, {b"if-match": b'"1"'}),
    ("DELETE", "/v1/services/in-the-file", None, {b"if-match": b"*"}),
    ("PUT", "/v1/services/in-the-file/status", {"status": "down"}, {}),
    ("PUT", "/v1/services/a/status", {"status": "up"}, {}),
    ("PUT", "/v1/services/indexer/status", {}, {}),
    ("PUT", "/v1/services/indexer/status", {"status": "op"}, {}),
    ("PUT", "/v1/services/indexer/status", {"status": "up", "code": "mine"}, {}),
    ("PUT", "/v1/services/%2e", TTL, {}),
    ("PUT", "/v1/services/a", {}, {}),
    ("PUT", "/v1/services/a", {**TTL, "id": "b"}, {}),
    ("PUT", "/v1/services/a", {**TTL, "probe": "tcp://127.0.0.1:1"}, {}),
    ("PUT", "/v1/services/a", {"ttl": 15}, {}),
    ("PUT", "/v1/services/a", {"ttl": "15"}, {}),
    ("PUT", "/v1/services/a", {**TTL, "impact": "major"}, {}),
    ("PUT", "/v1/services/a", {**TTL, "status": "Up"}, {}),
    ("PUT", "/v1/services/a", {**TTL, "interval": "5s"}, {}),
    ("PUT", "/v1/services/a", {"probe": "tpc://127.0.0.1:1"}, {}),
    ("PUT", "/v1/services/a", {"probe": "exec:/bin/true"}, {}),
    ("PUT", "/v1/services/a", {"probe": "disk:/"}, {}),
    ("PUT", "/v1/services/a", {"probe": {"url": "tls://127.0.0.1:1", "ca": "/etc/ca.pem"}}, {}),
    ("PUT", "/v1/services/a", {"probe": "redis://:${PASSWORD}@127.0.0.1"}, {}),
    ("PUT", "/v1/services/a", {"probe": {"url": "tcp://127.0.0.1:1", "contain": "x"}}, {}),
]


def a_node() -> NodeState:
    node = make_node("validator-7", version="v1")
    node.register("in-the-file").up()
    node.register("indexer", ttl=30)
    return node


async def refused_reload() -> str:
    raise ConfigError("services.a.probe: must be a string")


async def started(folder: Path, config: str = CONFIG) -> ControlSocket:
    file = folder / "svcnode.toml"
    file.write_text(config)
    node = a_node()
    settings = load(file, {"STATE_DIRECTORY": str(folder), "SVCNODE_NODE_NAME": "validator-7"})
    control = ControlSocket(node, HttpServer(node, ("/svc",)), settings, refused_reload)
    await control.claim()
    await control.start()
    return control


def test_errors_of_requests(tmp_path: Path, snapshot: Snapshot) -> None:
    async def responses() -> list[str]:
        control = await started(tmp_path)
        lines = []
        for method, path, value, headers in REQUESTS:
            body = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
            response = await control._app.handle(Request(method, path.encode(), b"", headers, body))
            sent = " ".join(
                [method, path[:40], body.decode()[:60], *(f"{n.decode()}: {v.decode()}" for n, v in headers.items())]
            )
            lines += [ascii(sent)[1:-1], f"    {response.code} {response.body.decode()}"]
        await control.close()
        return lines

    snapshot("errors_of_requests", "\n".join(asyncio.run(responses())))


def test_errors_of_the_clients(tmp_path: Path, snapshot: Snapshot) -> None:
    path = tmp_path.joinpath("/run/svcnode/control.sock")
    causes = [
        FileNotFoundError(),
        PermissionError(),
        TimeoutError(),
        OSError(24, ""),
        ValueError("the response is too large"),
    ]
    lines = [str(_unreachable(path, cause)) for cause in causes]
    for body in (b'{"message": "Not found"}', b""):
        try:
            _result(404, body)
        except ControlError as exc:
            lines.append(str(exc))
    snapshot("errors_of_the_clients", "\n".join(lines))


def test_another_node_at_the_socket(tmp_path: Path, snapshot: Snapshot) -> None:
    owner = cast("NodeDocument", {"node_name": "validator-7", "process_id": 4711, "config_file": "/etc/svcnode/a.toml"})
    renamed = cast("NodeDocument", {**owner, "node_name": "validator-8", "config_file": None})
    sharing = '[sharing]\nregistry = "etcd://127.0.0.1"\n'
    texts = ("", '[control]\nlisten = "unix:/run/c.sock"\n', sharing)
    settings = []
    for text in texts:
        file = tmp_path / "svcnode.toml"
        file.write_text(f'[node]\nname = "validator-7"\n{text}')
        settings.append(load(file, {"STATE_DIRECTORY": str(tmp_path)}))
    lines = [in_use_text(one, each) for each in settings for one in (owner, renamed, None)]
    client = ConfiguredControlClient("/run/c.sock", tmp_path / "svcnode.toml", timeout="1s")
    with mock.patch.object(ControlClient, "_send", return_value=owner), pytest.raises(ControlUnreachableError) as other:
        client.drain()
    lines.append(str(other.value).replace(str(tmp_path), "DIR"))
    snapshot("another_node_at_the_socket", "\n".join(lines))


def test_log_lines(tmp_path: Path, snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "svcnode")

    async def run() -> None:
        control = await started(tmp_path)
        await control.listen()
        await put(control, "/v1/services/a", {"probe": "tcp://127.0.0.1:1"})
        await control.close()
        database = tmp_path / "nodes" / "validator-7" / "control.db"
        database.write_bytes(b"x" * 4096)
        await (await started(tmp_path)).close()
        blocked = tmp_path / "nodes" / "validator-7" / "control.sock"
        blocked.mkdir()
        await (await started(tmp_path)).close()

    asyncio.run(run())
    text = "\n".join(f"{record.levelname.lower():7} {record.getMessage()}" for record in caplog.records)
    snapshot("log_lines", text.replace(str(tmp_path), "/var/lib/svcnode"))


async def put(control: ControlSocket, path: str, value: Any) -> None:
    response = await control._app.handle(Request("PUT", path.encode(), body=json.dumps(value).encode()))
    assert response.code == 201, response.body
