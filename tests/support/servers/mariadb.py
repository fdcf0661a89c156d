"""MariaDB and its replicas."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.support.servers.base import OwnPort, PasswordServer, RealServer, ToolError, as_flags, wait_until
from tests.support.servers.connection_limit import connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.certificates import Certificate
    from tests.support.disks import LoopDisk, MemoryDisk

PACKAGE = "mariadb-server"
USER = "svcnode"
PASSWORD = "ledger-password"
DATABASE = "ledger"
REPLICATION_USER = "follower"
REPLICATION_PASSWORD = "follower-password"
MAX_CONNECTIONS = 10  # the smallest possible value
WRITE_COLUMNS = "id TINYINT UNSIGNED PRIMARY KEY, written_at TIMESTAMP(6) NOT NULL"  # of the table for `write`
GALERA_LIBRARY = "/usr/lib/galera/libgalera_smm.so"


class MariaDbServer(PasswordServer):
    """With a certificate it requires TLS over TCP. With a disk, which must be mounted, all its data is on it."""

    password = PASSWORD
    quick_settings: Mapping[str, object] = {"slave-net-timeout": 2}

    def __init__(
        self, folder: Path, *, certificate: Certificate | None = None, disk: LoopDisk | MemoryDisk | None = None
    ) -> None:
        super().__init__(folder)
        self.data = (folder if disk is None else disk.path) / "data"
        self.disk = disk
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
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-log-file-size": "8M",
            "innodb-use-native-aio": "OFF",  # the number of AIO requests of a machine is limited
            "skip-name-resolve": "ON",
            **self.quick_settings,
        }
        if self.certificate is not None:
            options |= {"ssl-cert": self.folder / "server.pem", "ssl-key": self.folder / "server.key"}
            options |= {"require-secure-transport": "ON"}
        return [program("mariadbd", PACKAGE), "--no-defaults", *as_flags(options)]

    def is_ready(self) -> bool:
        return self.sql("SELECT 1") == "1"

    # ---- setup

    def prepare(self) -> None:
        install = program("mariadb-install-db", PACKAGE)  # creates the user mysql too
        self.chown(self.folder)
        if self.certificate is not None:
            self.copy_certificate(self.certificate, self.folder)
        if self.disk is not None:
            self.chown(self.disk.path)
        if not self.data.exists():
            options = [
                f"--datadir={self.data}",
                f"--tmpdir={self.folder}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--innodb-log-file-size=8M",
            ]
            self.run(install, "--no-defaults", "--innodb-use-native-aio=OFF", *options)

    def set_up(self) -> None:
        self.sql(
            f"""
            DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost');
            FLUSH PRIVILEGES;
            CREATE DATABASE {DATABASE};
            CREATE USER {USER} IDENTIFIED BY '{PASSWORD}';
            CREATE TABLE {DATABASE}.svcnode_write ({WRITE_COLUMNS}) ENGINE = InnoDB;
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

    def status(self, name: str) -> str:
        return self.sql(f"SHOW STATUS LIKE '{name}'").partition("\t")[2]

    @contextmanager
    def session(self, text: str) -> Iterator[None]:
        """A session of root that has run these statements and stays open, with its locks."""

        sleep = f"DO SLEEP(600.{secrets.randbelow(10**9):09})"  # unique

        def hold() -> None:
            with suppress(ToolError):  # the session is killed
                self.sql(f"{text}; {sleep}")

        holder = threading.Thread(target=hold)
        holder.start()
        find = f"SELECT id FROM information_schema.processlist WHERE info = '{sleep}'"
        try:
            wait_until(lambda: self.sql(find) != "", text)
            yield
        finally:
            if session := self.sql(find):
                self.sql(f"KILL {session}")
            holder.join()

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

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.sql("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            self.sql("SET GLOBAL read_only = 0")

    def write_lock(self) -> AbstractContextManager[None]:
        """Another client holds the lock of a backup."""
        return self.session("FLUSH TABLES WITH READ LOCK")

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Its disk is full, the space in its log files is used up, and it waits until space is free."""

        def write() -> None:
            with suppress(ToolError):  # the server is killed
                self.sql(f"REPLACE INTO {DATABASE}.svcnode_write VALUES (0, NOW(6));" * 100)

        assert self.disk is not None
        writer = threading.Thread(target=write)
        with self.disk.full():
            writer.start()
            try:
                waiting = "Waiting for someone to free space"
                wait_until(lambda: waiting in self.sql("SHOW PROCESSLIST"), "the server waits for space")
                yield
            finally:
                self.kill()  # it would wait for up to a minute before it tries again
                writer.join()
        self.start()
        self.wait_until_ready()


def _is_greeted(sock: socket.socket) -> bool:
    return sock.recv(5)[4:] == b"\n"  # the byte after the header is the protocol version, or 255 for an error


class MariaDbReplica(MariaDbServer):
    def __init__(self, folder: Path, primary: MariaDbServer) -> None:
        super().__init__(folder, certificate=primary.certificate)
        self.primary = primary
        self.quick_settings = primary.quick_settings

    def command(self) -> Sequence[str]:
        return [*super().command(), "--read-only=ON", "--log-slave-updates=ON"]

    def set_up(self) -> None:
        """The log of the primary still has all transactions, so no copy is needed."""
        retry = "MASTER_CONNECT_RETRY = 1," if self.quick_settings else ""
        self.sql(
            f"""
            CHANGE MASTER TO MASTER_HOST = '{self.host}', MASTER_PORT = {self.primary.port},
            MASTER_USER = '{REPLICATION_USER}', MASTER_PASSWORD = '{REPLICATION_PASSWORD}',
            MASTER_SSL = {int(self.certificate is not None)}, {retry} MASTER_USE_GTID = slave_pos;
            START SLAVE;
            """
        )
        wait_until(self.is_following, "following its primary")
        written = self.primary.sql("SELECT @@gtid_binlog_pos")
        assert self.sql(f"SELECT MASTER_GTID_WAIT('{written}', 30)") == "0", self.log_tail()

    @contextmanager
    def long_transaction(self) -> Iterator[None]:
        """A transaction that was open for 8 s is committed in the block, and the replica takes 2 s to apply it."""
        transaction = f"BEGIN; INSERT INTO {DATABASE}.slow VALUES (1); DO SLEEP(8); COMMIT"
        self.primary.sql(f"CREATE TABLE IF NOT EXISTS {DATABASE}.slow (x INT)")
        wait_until(lambda: "slow" in self.sql(f"SHOW TABLES IN {DATABASE}"), "replicated")

        def write() -> None:
            with self.session(f"LOCK TABLES {DATABASE}.slow WRITE"):
                self.primary.sql(f"SET SESSION binlog_format = ROW; {transaction}")
                wait_until(lambda: self.lag_s() >= 8, "the lag that it reports")
                time.sleep(2)

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(5)
        yield
        writer.join()

    def lag_s(self) -> int:
        """As it reports it."""
        seconds_behind_master = self.sql("SHOW SLAVE STATUS").split("\t")[32]
        return int(seconds_behind_master) if seconds_behind_master.isdecimal() else 0

    def is_following(self) -> bool:
        return self.sql("SHOW STATUS LIKE 'Slave_running'").endswith("ON")


class GaleraMember(MariaDbServer):
    """A Galera cluster of one member, until `quorum_lost` adds another."""

    cluster_port = OwnPort()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.other_member = GaleraArbitrator(folder / "arbitrator", self)

    def command(self) -> Sequence[str]:
        options = {
            "wsrep-on": "ON",
            "wsrep-provider": GALERA_LIBRARY,
            "wsrep-cluster-address": "gcomm://",  # a new cluster
            "wsrep-cluster-name": GaleraArbitrator.cluster,
            "wsrep-node-address": self.host,
            "wsrep-provider-options": _provider_options(self, self.cluster_port, "gcache.size=1M"),
            "binlog-format": "ROW",
        }
        return [*super().command(), *as_flags(options)]

    @contextmanager
    def quorum_lost(self) -> Iterator[None]:
        """The other one of two members is killed, and this one has noticed it."""
        self.other_member.start()
        try:
            wait_until(lambda: self.status("wsrep_cluster_size") == "2", "two members")
        finally:
            self.other_member.kill()
        wait_until(lambda: self.status("wsrep_cluster_status") == "non-Primary", "without a quorum")
        yield
        self.sql("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
        wait_until(lambda: self.status("wsrep_ready") == "ON", "a new primary component")


class GaleraArbitrator(RealServer):
    """A member that votes and has no data."""

    cluster = "svcnode"

    def __init__(self, folder: Path, member: GaleraMember) -> None:
        super().__init__(folder)
        self.member = member

    def command(self) -> Sequence[str]:
        address = f"gcomm://{self.host}:{self.member.cluster_port}"
        options = {"group": self.cluster, "address": address, "name": self.folder.name}
        options["options"] = _provider_options(self.member, self.port)
        return [program("garbd", "galera-arbitrator-4"), *as_flags(options)]

    def is_ready(self) -> bool:
        return True


def _provider_options(member: GaleraMember, port: int, *more: str) -> str:
    """A member that does not answer is suspected after one second; by default after five."""
    own = ["base_host=127.0.0.1", f"base_port={port}", f"gmcast.listen_addr=tcp://127.0.0.1:{port}"]
    times = ["evs.keepalive_period=PT0.3S", "evs.suspect_timeout=PT1S", "evs.inactive_timeout=PT2S"]
    return ";".join([*own, *(times if member.quick_settings else ()), "pc.recovery=false", *more])
