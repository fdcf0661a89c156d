"""RabbitMQ without its system service, with its own epmd, a user, a vhost and a queue; alarms; a cluster of two."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from pamqp import commands
from pamqp.frame import marshal, unmarshal

from tests.support.servers.base import OwnPort, PasswordServer
from tests.support.servers.connection_limit import all_connections_held
from tests.support.servers.http_request import tls_context
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.certificates import Certificate

USER = "svcnode"
PASSWORD = "ledger/pass:word"  # must be escaped in a URL
VHOST = "ledger"
QUEUE = "orders"
QUORUM_QUEUE = "transfers"  # in a cluster
MAX_CONNECTIONS = 12
TIMEOUT_S = 10.0
DISK_FREE_LIMIT = "1MB"

# Otherwise Erlang starts an epmd for the whole machine, in another session, that does not end with the broker.
_START = """\
epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" &
until epmd -port "$ERL_EPMD_PORT" -names >/dev/null 2>&1; do
  kill -0 $! 2>/dev/null || { echo "epmd has ended without a word: address already in use"; exit 1; }
  sleep 0.02
done
exec "$0"
"""


# Its schedulers do not wait actively, which would take time from other programs.
_ERLANG_FLAGS = "+sbwt none +sbwtdcpu none +sbwtdio none -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"


class RabbitServer(PasswordServer):
    """With a certificate it accepts only TLS. With `joins` it joins the cluster of a running broker."""

    password = PASSWORD
    epmd_port = OwnPort()
    node_port = OwnPort()

    def __init__(
        self, folder: Path, *, certificate: Certificate | None = None, joins: RabbitServer | None = None
    ) -> None:
        super().__init__(folder)
        self.certificate = certificate
        self.joins = joins
        if joins is not None:
            self.epmd_port = joins.epmd_port

    @property
    def node_name(self) -> str:
        return f"ledger-{self.port}@localhost"

    def url_with(self, password: str) -> str:
        scheme = "amqp" if self.certificate is None else "amqps"
        return f"{scheme}://{USER}:{quote(password, safe='')}@{self.host}:{self.port}/{VHOST}"

    def command(self) -> Sequence[str]:
        """Without Debian's wrapper, which fixes the user and the folders."""
        program("rabbitmq-server", "rabbitmq-server")
        return ["/bin/sh", "-c", _START, "/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def environ(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder if self.joins is None else self.joins.folder),  # of the Erlang cookie
            "ERL_EPMD_ADDRESS": self.host,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_DIST_PORT": str(self.node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG_FLAGS,
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
        }

    def prepare(self) -> None:
        settings: dict[str, object] = {
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
            "disk_free_limit.absolute": DISK_FREE_LIMIT,
        }
        if self.certificate is None:
            settings["listeners.tcp.1"] = f"{self.host}:{self.port}"
        else:
            settings |= {"listeners.tcp": "none", "listeners.ssl.1": f"{self.host}:{self.port}"}
            settings |= {
                "ssl_options.certfile": self.certificate.certificate,
                "ssl_options.keyfile": self.certificate.key,
            }
        if self.joins is None:
            settings["load_definitions"] = self.folder / "definitions.json"
        else:
            settings["cluster_formation.peer_discovery_backend"] = "classic_config"
            settings["cluster_formation.classic_config.nodes.1"] = self.joins.node_name
            settings["cluster_formation.classic_config.nodes.2"] = self.node_name
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "definitions.json").write_text(json.dumps(_DEFINITIONS))
        (self.folder / "plugins").write_text("[].\n")

    def is_ready(self) -> bool:
        with self._client() as is_served:
            return is_served

    def set_up(self) -> None:
        """A quorum queue has the members that are there when it is declared; the declaring one is its leader."""
        if self.joins is not None:
            file = self.folder / "definitions.json"
            file.write_text(json.dumps({"queues": [queue_definition(QUORUM_QUEUE, {"x-queue-type": "quorum"})]}))
            self.joins.control("import_definitions", str(file))

    def control(self, *command: str) -> str:
        """The output of `rabbitmqctl`."""
        return self.run("/usr/lib/rabbitmq/bin/rabbitmqctl", "--quiet", *command)

    @contextmanager
    def disk_alarm(self) -> Iterator[None]:
        """Publishers are blocked while this alarm is set."""
        self.control("set_disk_free_limit", "1000000GB")
        try:
            yield
        finally:
            self.control("set_disk_free_limit", DISK_FREE_LIMIT)

    def exhaust(self) -> AbstractContextManager[None]:
        """Hold all connections of the vhost. The next one gets an error after the login."""
        return all_connections_held(self._client)

    @contextmanager
    def _client(self) -> Iterator[bool]:
        """A client inside the block, and whether the broker accepted it."""
        with ExitStack() as opened:
            sock = opened.enter_context(socket.create_connection((self.host, self.port), timeout=TIMEOUT_S))
            if self.certificate is not None:
                context = tls_context(self.certificate.certificate)
                sock = opened.enter_context(context.wrap_socket(sock, server_hostname=self.host))
            yield _open_connection(sock)


def queue_definition(name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    return {"name": name, "vhost": VHOST, "durable": True, "auto_delete": False, "arguments": arguments}


_DEFINITIONS = {
    "users": [{"name": USER, "password": PASSWORD, "tags": ""}],
    "vhosts": [{"name": VHOST}],
    "permissions": [{"user": USER, "vhost": VHOST, "configure": ".*", "write": ".*", "read": ".*"}],
    "queues": [queue_definition(QUEUE, {})],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "vhost": VHOST, "value": {"max-connections": MAX_CONNECTIONS}}
    ],
}


def _open_connection(sock: socket.socket) -> bool:
    sock.sendall(b"AMQP\x00\x00\x09\x01")
    _read_method(sock)  # start
    login = commands.Connection.StartOk(mechanism="PLAIN", response=f"\0{USER}\0{PASSWORD}")
    sock.sendall(marshal(login, 0))
    _read_method(sock)  # tune
    sock.sendall(marshal(commands.Connection.TuneOk(1, 131_072, 0), 0) + marshal(commands.Connection.Open(VHOST), 0))
    return isinstance(_read_method(sock), commands.Connection.OpenOk)


def _read_method(sock: socket.socket) -> object:
    head = _read_exactly(sock, 7)
    return unmarshal(head + _read_exactly(sock, int.from_bytes(head[3:]) + 1))[2]


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        more = sock.recv(count - len(read))
        if not more:
            raise ConnectionError("closed by the broker")
        read += more
    return read
