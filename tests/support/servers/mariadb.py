"""MariaDB and its replicas."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.servers.base import PasswordServer, wait_until
from tests.support.servers.connection_limit import connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.certificates import Certificate

PACKAGE = "mariadb-server"
USER = "svcnode"
PASSWORD = "ledger-password"
DATABASE = "ledger"
REPLICATION_USER = "follower"
REPLICATION_PASSWORD = "follower-password"
MAX_CONNECTIONS = 10  # the smallest possible value


class MariaDbServer(PasswordServer):
    """With a certificate it requires TLS over TCP."""

    password = PASSWORD

    def __init__(self, folder: Path, *, certificate: Certificate | None = None) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.socket_file = folder / "mariadb.sock"
        self.certificate = certificate

    def url_with(self, password: str) -> str:
        return f"mysql://{USER}:{password}@{self.host}:{self.port}/{DATABASE}"

    def user(self) -> str | None:
        return "mysql"

    def command(self) -> Sequence[str]:
        options = {
            "datadir": self.data,
            "bind-address": self.host,
            "port": self.port,
            "socket": self.socket_file,
            "pid-file": self.folder / "mariadb.pid",
            "tmpdir": self.folder,  # a server that starts deletes the files in it
            "server-id": self.port,  # unique in a test
            "log-bin": "binlog",
            "max-connections": MAX_CONNECTIONS,
            "connect-timeout": 600,  # for clients that only hold a connection
            "slave-net-timeout": 2,
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-use-native-aio": "OFF",  # the number of AIO requests of a machine is limited
            "skip-name-resolve": "ON",
        }
        if self.certificate is not None:
            options |= {"ssl-cert": self.folder / "server.pem", "ssl-key": self.folder / "server.key"}
            options |= {"require-secure-transport": "ON"}
        return [program("mariadbd", PACKAGE), "--no-defaults", *(f"--{name}={v}" for name, v in options.items())]

    def is_ready(self) -> bool:
        return self.sql("SELECT 1") == "1"

    # ---- setup

    def prepare(self) -> None:
        install = program("mariadb-install-db", PACKAGE)  # creates the user mysql too
        self.chown(self.folder)
        if self.certificate is not None:
            self._copy_certificate(self.certificate)
        if not self.data.exists():
            options = [
                f"--datadir={self.data}",
                f"--tmpdir={self.folder}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
            self.run(install, "--no-defaults", "--innodb-use-native-aio=OFF", *options)

    def _copy_certificate(self, made: Certificate) -> None:
        for source, name in ((made.certificate, "server.pem"), (made.key, "server.key")):
            shutil.copyfile(source, self.folder / name)
            (self.folder / name).chmod(0o600)
            self.chown(self.folder / name)

    def set_up(self) -> None:
        self.sql(
            f"""
            DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost');
            FLUSH PRIVILEGES;
            CREATE DATABASE {DATABASE};
            CREATE USER {USER} IDENTIFIED BY '{PASSWORD}';
            GRANT ALL ON {DATABASE}.* TO {USER};
            GRANT REPLICATION CLIENT, SLAVE MONITOR ON *.* TO {USER};
            CREATE USER {REPLICATION_USER} IDENTIFIED BY '{REPLICATION_PASSWORD}';
            GRANT REPLICATION SLAVE ON *.* TO {REPLICATION_USER};
            """
        )

    # ---- requests

    def sql(self, text: str) -> str:
        """The result for root: a line for each row, a tab between columns."""
        options = ["--no-defaults", f"--socket={self.socket_file}", "--user=root"]
        return self.run(program("mariadb", PACKAGE), *options, "--batch", "--skip-column-names", text=text)

    def set_read_only(self, is_read_only: bool) -> None:
        self.sql(f"SET GLOBAL read_only = {int(is_read_only)}")

    def replica(self, folder: Path) -> MariaDbReplica:
        """A read-only replica; start it with `with` while this server runs."""
        return MariaDbReplica(folder, self)

    # ---- faults

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """Hold all connections that its replicas do not use, and the extra one for root."""
        replicas = int(
            self.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
        )
        with connections_held(MAX_CONNECTIONS + 1 - replicas, self.socket_file, _is_greeted):
            yield


def _is_greeted(sock: socket.socket) -> bool:
    return sock.recv(5)[4:] == b"\n"  # the byte after the header is the protocol version, or 255 for an error


class MariaDbReplica(MariaDbServer):
    def __init__(self, folder: Path, primary: MariaDbServer) -> None:
        super().__init__(folder, certificate=primary.certificate)
        self.primary = primary

    def command(self) -> Sequence[str]:
        return [*super().command(), "--read-only=ON"]

    def set_up(self) -> None:
        """The log of the primary still has all transactions, so no copy is needed."""
        self.sql(
            f"""
            CHANGE MASTER TO MASTER_HOST = '{self.host}', MASTER_PORT = {self.primary.port},
            MASTER_USER = '{REPLICATION_USER}', MASTER_PASSWORD = '{REPLICATION_PASSWORD}',
            MASTER_SSL = {int(self.certificate is not None)}, MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos;
            START SLAVE;
            """
        )
        wait_until(self.is_following, "following its primary")
        written = self.primary.sql("SELECT @@gtid_binlog_pos")
        assert self.sql(f"SELECT MASTER_GTID_WAIT('{written}', 30)") == "0", self.log_tail()

    def is_following(self) -> bool:
        return self.sql("SHOW STATUS LIKE 'Slave_running'").endswith("ON")
