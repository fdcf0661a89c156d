"""What replicas of MySQL and MariaDB say of their sources, in the words that each of them has for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from asyncmy.errors import MySQLError, OperationalError, ProgrammingError

from svcnode.core.model import Verdict
from svcnode.probes import make_probe
from svcnode.probes.mysql import ER_PARSE_ERROR, MysqlProbe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


URL = "mysql://me@127.0.0.1"
READY = Verdict.ready()
STOPPED = None  # how far behind it is, nobody knows

# By the statement that such a server understands: the columns for the name of a source, and for how far behind it is.
NEW_MYSQL = {"SHOW REPLICA STATUS": ("Channel_Name", "Seconds_Behind_Source")}
OLD_MYSQL = {"SHOW SLAVE STATUS": ("Channel_Name", "Seconds_Behind_Master")}
MARIADB = {"SHOW ALL SLAVES STATUS": ("Connection_name", "Seconds_Behind_Master")}
ANY_SERVER = pytest.mark.parametrize("speaks", [NEW_MYSQL, OLD_MYSQL, MARIADB], ids=["new", "old", "MariaDB"])


class Server:
    """Answers a statement with rows, and those that it does not understand as servers do."""

    def __init__(self, speaks: dict[str, tuple[str, str]], sources: Mapping[str, int | None]) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"SELECT 1": [{"1": 1}]}
        for statement, (name_column, lag_column) in speaks.items():
            self.rows[statement] = [{name_column: name, lag_column: lag} for name, lag in sources.items()]
        self.refusal: MySQLError = ProgrammingError(ER_PARSE_ERROR, "You have an error in your SQL syntax")
        self._found: list[dict[str, Any]] = []

    async def ping(self, *, reconnect: bool) -> None:
        assert not reconnect

    @asynccontextmanager
    async def cursor(self) -> AsyncIterator[Server]:
        yield self

    async def execute(self, statement: str) -> None:
        if statement not in self.rows:
            raise self.refusal
        self._found = self.rows[statement]

    async def fetchall(self) -> list[dict[str, Any]]:
        return self._found


def ask(server: Server, **options: object) -> Verdict:
    probe = make_probe({"url": URL, **options})
    assert isinstance(probe, MysqlProbe)
    return asyncio.run(probe.check_connection(cast("_Connection", server)))


def verdict_on(speaks: dict[str, tuple[str, str]], sources: Mapping[str, int | None], **options: object) -> Verdict:
    return ask(Server(speaks, sources), **options)


@ANY_SERVER
def test_a_replica_that_follows_all_its_sources_is_ready(speaks: dict[str, tuple[str, str]]) -> None:
    for sources in ({"": 0}, {"east": 3, "west": 5}):
        assert verdict_on(speaks, sources, role="replica", max_lag="5s") == READY


@ANY_SERVER
@pytest.mark.parametrize("order", [1, -1])
def test_one_source_that_is_not_followed_any_more_is_enough_to_be_not_ready(
    speaks: dict[str, tuple[str, str]], order: int
) -> None:
    sources = dict([("east", 9), ("west", STOPPED), ("north", 0)][::order])
    stopped = Verdict.not_ready(f'a replica whose replication from "west" does not run: {URL}')
    assert verdict_on(speaks, sources, role="replica") == stopped
    assert verdict_on(speaks, sources, max_lag="1s") == stopped
    assert verdict_on(speaks, sources) == READY  # nobody asked


@ANY_SERVER
@pytest.mark.parametrize("order", [1, -1])
def test_a_replica_is_as_far_behind_as_it_is_behind_the_worst_of_its_sources(
    speaks: dict[str, tuple[str, str]], order: int
) -> None:
    sources = dict([("east", 0), ("west", 70), ("north", 20)][::order])
    behind = Verdict.not_ready(f'a replica 70 s behind "west", max_lag is 60 s: {URL}')
    assert verdict_on(speaks, sources, max_lag="60s") == behind
    assert verdict_on(speaks, sources, role="replica", max_lag="70s") == READY


@ANY_SERVER
def test_a_source_without_a_name_is_told_without_one(speaks: dict[str, tuple[str, str]]) -> None:
    assert verdict_on(speaks, {"": 70}, max_lag="60s") == Verdict.not_ready(
        f"a replica 70 s behind, max_lag is 60 s: {URL}"
    )
    stopped = Verdict.not_ready(f"a replica whose replication does not run: {URL}")
    assert verdict_on(speaks, {"": STOPPED}, role="replica") == stopped


@ANY_SERVER
def test_a_server_without_a_source_is_no_replica(speaks: dict[str, tuple[str, str]]) -> None:
    assert verdict_on(speaks, {}, role="replica") == Verdict.not_ready(f"no replica: {URL}")
    assert verdict_on(speaks, {}, max_lag="1s") == READY


def test_mariadb_is_asked_for_all_sources_though_it_understands_what_tells_of_one_only() -> None:
    server = Server(MARIADB, {"": 0, "west": STOPPED})
    server.rows["SHOW REPLICA STATUS"] = server.rows["SHOW SLAVE STATUS"] = [{"Seconds_Behind_Master": 0}]
    assert ask(server, role="replica") == Verdict.not_ready(
        f'a replica whose replication from "west" does not run: {URL}'
    )


def test_a_refusal_is_no_reason_to_ask_in_other_words() -> None:
    server = Server(OLD_MYSQL, {"": 0})
    for refusal in (ProgrammingError(1146, "no such table"), OperationalError(1227, "Access denied")):
        server.refusal = refusal
        with pytest.raises(type(refusal)):
            ask(server, role="replica")
