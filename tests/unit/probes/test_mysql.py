"""The replication status of MySQL and MariaDB servers, with the statements and columns of each."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from asyncmy.errors import MySQLError, OperationalError, ProgrammingError

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.probes import make_probe
from svcnode.probes.mysql import _READ_ONLY_QUERY, _STATUS_QUERY, ER_PARSE_ERROR, MysqlProbe
from tests.support.verdicts import READY, not_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from svcnode.probes.mysql_connection import MysqlConnection

URL = "mysql://me@127.0.0.1"
STOPPED = None  # the lag while replication does not run
REPLICATION_STOPPED = not_ready(ReasonCode.REPLICATION_STOPPED)
LAGGING = not_ready(ReasonCode.LAGGING)

# By the statement that such a server accepts: the columns for the name of a source and for its lag.
NEW_MYSQL = {"SHOW REPLICA STATUS": ("Channel_Name", "Seconds_Behind_Source")}
OLD_MYSQL = {"SHOW SLAVE STATUS": ("Channel_Name", "Seconds_Behind_Master")}
MARIADB = {"SHOW ALL SLAVES STATUS": ("Connection_name", "Seconds_Behind_Master")}
ANY_SERVER = pytest.mark.parametrize("statements", [NEW_MYSQL, OLD_MYSQL, MARIADB], ids=["new", "old", "MariaDB"])


class Server:
    """Returns rows for the statements that it knows, and raises `error` for others."""

    def __init__(self, statements: dict[str, tuple[str, str]], sources: Mapping[str, int | None]) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {
            _READ_ONLY_QUERY: [{"read_only": 0, "innodb_read_only": 0}],
            _STATUS_QUERY: [],
        }
        for statement, (name_column, lag_column) in statements.items():
            running_column = "Replica_IO_Running" if statement == "SHOW REPLICA STATUS" else "Slave_IO_Running"
            self.rows[statement] = [
                {name_column: name, lag_column: lag, running_column: "Yes"} for name, lag in sources.items()
            ]
        self.error: MySQLError = ProgrammingError(ER_PARSE_ERROR, "You have an error in your SQL syntax")
        self._result: list[dict[str, Any]] = []

    @asynccontextmanager
    async def cursor(self) -> AsyncIterator[Server]:
        yield self

    async def execute(self, statement: str) -> None:
        if statement not in self.rows:
            raise self.error
        self._result = self.rows[statement]

    async def fetchall(self) -> list[dict[str, Any]]:
        return self._result


def check(server: Server, **options: object) -> Verdict:
    probe = make_probe({"url": URL, **options})
    assert isinstance(probe, MysqlProbe)
    return asyncio.run(probe.check_connection(cast("MysqlConnection", server))) or Verdict.ready()


def verdict_on(statements: dict[str, tuple[str, str]], sources: Mapping[str, int | None], **options: object) -> Verdict:
    return check(Server(statements, sources), **options)


@ANY_SERVER
def test_a_replica_that_follows_all_its_sources_is_ready(statements: dict[str, tuple[str, str]]) -> None:
    for sources in ({"": 0}, {"east": 3, "west": 5}):
        assert verdict_on(statements, sources, role="replica", max_lag="5s") == READY


@ANY_SERVER
@pytest.mark.parametrize("order", [1, -1])
def test_a_replica_is_not_ready_if_replication_from_one_source_has_stopped(
    statements: dict[str, tuple[str, str]], order: int
) -> None:
    sources = dict([("east", 9), ("west", STOPPED), ("north", 0)][::order])
    verdict = verdict_on(statements, sources, role="replica")
    assert verdict == REPLICATION_STOPPED
    assert '"west"' in verdict.reason
    assert verdict_on(statements, sources, max_lag="1s") == REPLICATION_STOPPED
    assert verdict_on(statements, sources) == READY


@ANY_SERVER
@pytest.mark.parametrize("order", [1, -1])
def test_the_lag_of_a_replica_is_the_largest_lag_of_its_sources(
    statements: dict[str, tuple[str, str]], order: int
) -> None:
    sources = dict([("east", 0), ("west", 70), ("north", 20)][::order])
    verdict = verdict_on(statements, sources, max_lag="60s")
    assert verdict == LAGGING
    assert '"west"' in verdict.reason
    assert verdict_on(statements, sources, role="replica", max_lag="70s") == READY


@ANY_SERVER
def test_a_server_without_a_source_is_not_a_replica(statements: dict[str, tuple[str, str]]) -> None:
    assert verdict_on(statements, {}, role="replica") == not_ready(ReasonCode.WRONG_ROLE)
    assert verdict_on(statements, {}, max_lag="1s") == READY


def test_mariadb_is_queried_with_the_statement_that_lists_all_sources() -> None:
    server = Server(MARIADB, {"": 0, "west": STOPPED})
    server.rows["SHOW REPLICA STATUS"] = server.rows["SHOW SLAVE STATUS"] = [{"Seconds_Behind_Master": 0}]
    assert check(server, role="replica") == REPLICATION_STOPPED


def test_only_a_syntax_error_leads_to_another_statement() -> None:
    server = Server(OLD_MYSQL, {"": 0})
    for error in (ProgrammingError(1146, "no such table"), OperationalError(1227, "Access denied")):
        server.error = error
        with pytest.raises(type(error)):
            check(server, role="replica")
