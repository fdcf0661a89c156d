"""A real MariaDB, and its replicas."""

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
MAX_CONNECTIONS = 10  # the least it can be told


class MariaDbServer(PasswordServer):
    """With a certificate, it takes nobody in over TCP without TLS."""

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
            "tmpdir": self.folder,  # one that starts deletes what others have in theirs
            "server-id": self.port,  # no two in one test have the same
            "log-bin": "binlog",
            "max-connections": MAX_CONNECTIONS,
            "connect-timeout": 600,  # those that only take a connection are let keep it
            "slave-net-timeout": 2,
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-use-native-aio": "OFF",  # the machine has few of those, and other servers too
            "skip-name-resolve": "ON",
        }
        if self.certificate is not None:
            options |= {"ssl-cert": self.folder / "server.pem", "ssl-key": self.folder / "server.key"}
            options |= {"require-secure-transport": "ON"}
        return [program("mariadbd", PACKAGE), "--no-defaults", *(f"--{name}={v}" for name, v in options.items())]

    def is_ready(self) -> bool:
        return self.sql("SELECT 1") == "1"

    # ---- making it

    def prepare(self) -> None:
        install = program("mariadb-install-db", PACKAGE)  # its user comes with it
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

    # ---- talking to it

    def sql(self, text: str) -> str:
        """What it answers root: a line for each row, a tab between columns."""
        place = ["--no-defaults", f"--socket={self.socket_file}", "--user=root"]
        return self.run(program("mariadb", PACKAGE), *place, "--batch", "--skip-column-names", text=text)

    def set_read_only(self, is_read_only: bool) -> None:
        self.sql(f"SET GLOBAL read_only = {int(is_read_only)}")

    def replica(self, folder: Path) -> MariaDbReplica:
        """One that follows it and can only be read; to be started with `with` while this one runs."""
        return MariaDbReplica(folder, self)

    # ---- hurting it

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """All its connections are taken that its replicas left, and the one more that is kept for root."""
        following = int(
            self.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
        )
        with connections_held(MAX_CONNECTIONS + 1 - following, self.socket_file, _is_greeted):
            yield


def _is_greeted(sock: socket.socket) -> bool:
    return sock.recv(5)[4:] == b"\n"  # after the length comes the version of the protocol, or 255 for an error


class MariaDbReplica(MariaDbServer):
    def __init__(self, folder: Path, primary: MariaDbServer) -> None:
        super().__init__(folder, certificate=primary.certificate)
        self.primary = primary

    def command(self) -> Sequence[str]:
        return [*super().command(), "--read-only=ON"]

    def set_up(self) -> None:
        """All that the primary ever wrote is still in its log, so nothing has to be copied before."""
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
