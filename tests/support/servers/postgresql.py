"""PostgreSQL and its standbys."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.support.servers.base import PasswordServer, ToolError, as_flags, descendants, wait_until
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.certificates import Certificate
    from tests.support.disks import LoopDisk

USER = "svcnode"
PASSWORD = "ledger-password"
DATABASE = "ledger"
SUPERUSER = "postgres"
SUPERUSER_PASSWORD = "superuser-password"
MAX_CONNECTIONS = 20
WRITE_TABLE = "svcnode_write"


class PostgresServer(PasswordServer):
    """Requires scram-sha-256 over TCP; with a certificate it requires TLS too.

    With a disk, which must be mounted, the database is on it; the WAL is not.
    """

    password = PASSWORD
    quick_settings: Mapping[str, object] = {"wal_receiver_timeout": "2s", "wal_retrieve_retry_interval": "200ms"}

    def __init__(self, folder: Path, *, certificate: Certificate | None = None, disk: LoopDisk | None = None) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self.certificate = certificate
        self.disk = disk
        self._fsync = "off"
        self._stopped_pid: int | None = None  # the recovery process, while it is stopped

    def url_with(self, password: str) -> str:
        return f"postgresql://{USER}:{password}@{self.host}:{self.port}/{DATABASE}"

    def user(self) -> str | None:
        return "postgres"

    def tool(self, name: str) -> str:
        return str(Path(program("postgres", "postgresql", also_in="/usr/lib/postgresql/*/bin")).with_name(name))

    def command(self) -> Sequence[str]:
        options = {"-D": self.data, "-p": self.port, "-k": self.folder, "-c": f"fsync={self._fsync}"}
        return [self.tool("postgres"), *(str(word) for option in options.items() for word in option)]

    def is_ready(self) -> bool:
        return self.psql("SELECT 1") == "1"

    # ---- setup

    def prepare(self) -> None:
        self.tool("postgres")  # installs the package, which creates the user
        self.chown(self.folder)
        if not self.data.exists():
            self.make_data()
            self.configure()

    def make_data(self) -> None:
        options = ["--username", SUPERUSER, "--encoding", "UTF8", "--locale", "C", "--no-sync", "--auth", "trust"]
        self.run(self.tool("initdb"), "--pgdata", str(self.data), *options)

    def configure(self) -> None:
        settings = {
            "listen_addresses": self.host,
            "unix_socket_permissions": "0700",
            "max_connections": MAX_CONNECTIONS,
            "shared_buffers": "16MB",
            "dynamic_shared_memory_type": "mmap",  # in its folder, which is deleted
            "autovacuum": "off",
            "checkpoint_timeout": "1h",  # all writes since the start must be recovered
            **self.quick_settings,
        }
        if self.certificate is not None:
            settings |= {"ssl": "on"} | {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key"}
            self.copy_certificate(self.certificate, self.data)
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(lines)
        host = "host" if self.certificate is None else "hostssl"
        rules = [f"local all {SUPERUSER} trust", "local all all scram-sha-256"]
        rules += [f"{host} {what} all {self.host}/32 scram-sha-256" for what in ("all", "replication")]
        (self.data / "pg_hba.conf").write_text("\n".join([*rules, ""]))

    def set_up(self) -> None:
        self.psql(f"ALTER USER {SUPERUSER} PASSWORD '{SUPERUSER_PASSWORD}'")
        self.psql(f"CREATE USER {USER} PASSWORD '{PASSWORD}'")
        tablespace = "pg_default"
        if self.disk is not None:
            location = self.disk.path / "tablespace"
            location.mkdir()
            self.chown(location)
            self.psql(f"CREATE TABLESPACE {(tablespace := 'small')} LOCATION '{location}'")
        self.psql(f"CREATE DATABASE {DATABASE} OWNER {USER} TABLESPACE {tablespace}")
        self.psql(
            f"CREATE TABLE {WRITE_TABLE} (id integer PRIMARY KEY, written_at timestamptz NOT NULL); "
            f"GRANT SELECT, INSERT, UPDATE ON {WRITE_TABLE} TO {USER}",
            database=DATABASE,
        )

    # ---- requests

    def psql(self, sql: str, *, database: str = "postgres") -> str:
        """The result for the superuser: a line for each row, `|` between columns."""
        connection = as_flags({"host": self.folder, "port": self.port, "username": SUPERUSER, "dbname": database})
        options = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]
        return self.run(self.tool("psql"), *connection, *options, "--command", sql)

    def replica(self, folder: Path) -> PostgresStandby:
        """A hot standby; start it with `with` while this server runs."""
        return PostgresStandby(folder, self)

    # ---- faults

    def kill(self) -> None:
        super().kill()
        self._stopped_pid = None
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove shared memory, lock file and sockets, which a power failure would not leave."""
        lock = self.data / "postmaster.pid"
        with suppress(FileNotFoundError):
            lines = lock.read_text().splitlines()
            if len(lines) > 6 and lines[6].strip():
                subprocess.run(["ipcrm", "--shmem-id", lines[6].split()[1]], check=False, capture_output=True)
            lock.unlink()
        for path in self.folder.glob(".s.PGSQL.*"):
            path.unlink()

    def start_stalled_recovery(self) -> None:
        """Crash it, start it, and stop its recovery until `finish_recovery`. It reports that it is starting up."""
        for _ in range(10):
            if self.process is None:
                self.start()
                self.wait_until_ready()
            self._write_unrecovered_data()
            self.kill()
            self._fsync = "on"  # it syncs all its files first, which leaves time to stop it before it replays
            self.start()
            self._fsync = "off"
            if self._stop_recovery_process() and "starting up" in self._connection_error():
                return
            self.kill()  # the recovery was too fast
        raise AssertionError(f"cannot stop the recovery: {self.log_tail()}")

    def _write_unrecovered_data(self) -> None:
        self.psql("DROP TABLE IF EXISTS unsaved")
        self.psql("CREATE TABLE unsaved AS SELECT n, repeat('x', 100) AS text FROM generate_series(1, 200000) AS n")
        self.psql("UPDATE unsaved SET n = n + 1")

    def _stop_recovery_process(self) -> bool:
        assert self.process is not None
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s and self.process.poll() is None:
            for child in descendants(self.process.pid):
                if "walwriter" in child.title:
                    return False  # already recovered
                if "postgres: startup" in child.title:
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGSTOP)
                        self._stopped_pid = child.pid
                        return True
        return False

    def _connection_error(self) -> str:
        try:
            return self.psql("SELECT 'connected'")
        except ToolError as exc:
            return str(exc)

    def finish_recovery(self) -> None:
        assert self._stopped_pid is not None, "not stopped"
        os.kill(self._stopped_pid, signal.SIGCONT)
        self._stopped_pid = None
        self.wait_until_ready()

    @contextmanager
    def exhaust(self) -> Iterator[None]:
        """Hold all connections, those for superusers too."""
        with ExitStack() as stack:
            held: list[psycopg.Connection] = []

            def hold_all() -> bool:
                with suppress(psycopg.OperationalError):
                    while len(held) < MAX_CONNECTIONS:
                        connection = self._connect()
                        stack.callback(connection.close)
                        held.append(connection)
                return len(held) == MAX_CONNECTIONS

            wait_until(hold_all, "all connections held")
            yield

    def _connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.folder), port=self.port, user=SUPERUSER, dbname=database)

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """A setting of the server that needs no restart."""
        before = self.psql(f"SHOW {name}")
        self.psql(f"ALTER SYSTEM SET {name} = '{value}'")
        try:
            self._reload(name, value)
            yield
        finally:
            self.psql(f"ALTER SYSTEM RESET {name}")
            self._reload(name, before)

    def _reload(self, name: str, value: str) -> None:
        self.psql("SELECT pg_reload_conf()")
        wait_until(lambda: self.psql(f"SHOW {name}") == value, f"{name} = {value}")

    @contextmanager
    def granted(self, role: str) -> Iterator[None]:
        """The user of the probe is a member of the role; on the standbys too, when they have replayed it."""
        self.psql(f"SET synchronous_commit = local; GRANT {role} TO {USER}")
        try:
            yield
        finally:
            self.psql(f"SET synchronous_commit = local; REVOKE {role} FROM {USER}")

    def read_only(self) -> AbstractContextManager[None]:
        """Every transaction is read-only by default."""
        return self.setting("default_transaction_read_only", "on")

    def synchronous(self, standbys: str) -> AbstractContextManager[None]:
        """A transaction waits for these standbys, such as "*" for any one."""
        return self.setting("synchronous_standby_names", standbys)

    @contextmanager
    def write_lock(self) -> Iterator[None]:
        """Another client holds a lock on the table that checks write to."""
        with self._connect(DATABASE) as connection:
            connection.execute(f"LOCK TABLE {WRITE_TABLE} IN EXCLUSIVE MODE")
            yield
            connection.rollback()

    @contextmanager
    def long_transaction(self) -> Iterator[None]:
        """One transaction writes during the whole block, and commits nothing."""
        self.psql("CREATE TABLE IF NOT EXISTS bulk (n bigint, text text)")
        stopping = threading.Event()

        def insert() -> None:
            with self._connect() as connection:
                while not stopping.is_set():
                    connection.execute("INSERT INTO bulk SELECT n, repeat('x', 200) FROM generate_series(1, 2000) AS n")
                    stopping.wait(0.02)
                connection.rollback()

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(insert)
            try:
                yield
            finally:
                stopping.set()
                running.result()
                self.psql("TRUNCATE bulk")


class PostgresStandby(PostgresServer):
    def __init__(self, folder: Path, primary: PostgresServer) -> None:
        super().__init__(folder, certificate=primary.certificate)
        self.primary = primary

    def make_data(self) -> None:
        server = f"host={self.host} port={self.primary.port} user={SUPERUSER} password={SUPERUSER_PASSWORD}"
        options = ["--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync"]
        self.run(self.tool("pg_basebackup"), "--dbname", server, "--pgdata", str(self.data), *options)

    def configure(self) -> None:
        """The copy of the primary has its settings; the port is on the command line."""

    def set_up(self) -> None:
        wait_until(self.is_following, "following its primary")

    @contextmanager
    def receiver_frozen(self) -> Iterator[None]:
        """It receives nothing from its primary, and both do not notice."""
        assert self.process is not None
        (pid,) = [each.pid for each in descendants(self.process.pid) if "walreceiver" in each.title]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def is_following(self) -> bool:
        return self.psql("SELECT status FROM pg_stat_wal_receiver") == "streaming"
