"""`svcnode ping`: the health check of a container."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.ports import free_port
from tests.support.processes import Agent

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = '[server]\nlisten = "{}"\ndrain = "1h"\n[[services]]\nid = "db"\nstatus = "Down"\n'


def ping(folder: Path, *arguments: str, **environ: Any) -> int:
    return svcnode("ping", *arguments, folder=folder, **environ).returncode


def test_a_node_answers_whatever_its_health_and_also_while_it_drains(tmp_path: Path) -> None:
    with Agent(tmp_path, config=CONFIG.format(f"0.0.0.0:{free_port()}")) as agent:
        agent.wait_for_event("started")
        assert agent.health() == 503
        assert ping(tmp_path) == 0
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        assert ping(tmp_path) == 0
    assert ping(tmp_path) == 1


def test_a_node_with_tls_whose_certificate_was_renewed_but_not_loaded_and_a_unix_socket(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    config = f"""[server]
listen = ["https://127.0.0.1:{free_port()}", "unix:node.sock"]
tls = {{ certificate = "{made.certificate}", key = "{made.key}" }}
"""
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        make_certificate(tmp_path)
        assert ping(tmp_path) == 0
        assert ping(tmp_path, SVCNODE_SERVER_LISTEN="unix:node.sock") == 0


def test_a_server_that_is_silent_or_not_http_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "svcnode.toml").write_text(CONFIG.format(f"127.0.0.1:{server.getsockname()[1]}"))
        assert ping(tmp_path, "--timeout", "200ms") == 1
        server.accept()[0].close()
        answering = threading.Thread(target=lambda: answer(server, b"hello\r\n"))
        answering.start()
        assert ping(tmp_path) == 1
        answering.join()


def answer(server: socket.socket, data: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(data)


def test_an_invalid_configuration_is_another_exit_code(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text("[server]\nlisten = 5\n")
    assert ping(tmp_path) == 2
    (tmp_path / "svcnode.toml").unlink()
    assert ping(tmp_path, "--timeout", "0s") == 2
