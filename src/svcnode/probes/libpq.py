"""libpq on asyncio: connecting, logging in, running and cancelling a query.

A connection of psycopg, when cancelled, sends a cancel request and waits for the server, which does not answer if it
hangs. So libpq is called directly.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from psycopg import pq
from psycopg.conninfo import make_conninfo

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import raise_if_own_network
from svcnode.net.threads import DaemonCall
from svcnode.net.trace import step
from svcnode.probes.base import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.pq.abc import PGcancelConn, PGconn, PGresult

_MAX_READS = 4096  # each fills the buffer of libpq at most once
_CANCEL_TIMEOUT_S = 0.25  # less than run.RECANCEL_AFTER_S
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
_WRITING = pq.PollingStatus.WRITING  # also the initial state
_WAITING = (pq.PollingStatus.READING, _WRITING)


class PostgresqlError(Exception):
    """The message of libpq or of the server, with the SQLSTATE if libpq returns it."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


# ---- connections


async def connect(parameters: dict[str, str], address: str) -> PGconn:
    """A connection that is open, without login."""
    connection: PGconn = pq.PGconn.connect_start(make_conninfo(**parameters).encode())
    try:
        if connection.status != pq.ConnStatus.BAD:  # BAD for example if a Unix socket does not exist
            connection.nonblocking = 1
        state: int = _WRITING
        with step("connect", address):
            while connection.status == pq.ConnStatus.STARTED:
                state = await _poll(connection, connection.connect_poll, state)
            _raise_unless(connection, connection.status != pq.ConnStatus.BAD)
    except BaseException as exc:  # on cancellation too: nothing else closes the connection
        connection.finish()
        if isinstance(exc, PostgresqlError) and (error := system_error(str(exc))) is not None:
            raise_if_own_network(error, address)
        raise
    return connection


async def log_in(connection: PGconn) -> None:
    state: int = _WRITING
    while state in _WAITING:
        state = await _poll(connection, connection.connect_poll, state)
    _raise_unless(connection, connection.status == pq.ConnStatus.OK)


async def _poll(connection: PGconn | PGcancelConn, poll: Callable[[], int], state: int) -> int:
    await _wait_ready(connection.socket, to_write=state == _WRITING)
    return poll()


def _raise_unless(connection: PGconn, is_ok: bool) -> None:
    if is_ok:
        return
    if not connection.error_message:  # libpq has no message if it cannot create a socket; this raises the error
        socket.socket().close()
    if connection.needs_password:
        raise CheckError("the server requires a password, and the probe has none", ReasonCode.AUTH_REQUIRED)
    raise PostgresqlError(connection.get_error_message())


async def _wait_ready(descriptor: int, *, to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


# ---- queries


async def execute_for_row(connection: PGconn, query: str, column_count: int) -> list[bytes | None]:
    result = await execute(connection, query)
    if (result.ntuples, result.nfields) != (1, column_count):
        raise CheckError("the response has another form than the query", ReasonCode.UNEXPECTED_RESPONSE)
    return [result.get_value(0, column) for column in range(column_count)]


async def execute_or_cancel(connection: PGconn, query: str, *, is_script: bool = False) -> PGresult:
    """If this is cancelled, the server ends the query.

    A process of the server that waits for a lock or for a standby does not notice that its client is gone.
    """
    try:
        return await execute(connection, query, is_script=is_script)
    except asyncio.CancelledError:
        with suppress(Exception):  # the verdict is known
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await _send_cancel_request(connection)
        raise


async def _send_cancel_request(connection: PGconn) -> None:
    if pq.version() < 170000:
        await DaemonCall("cancel").call(connection.get_cancel().cancel)
        return
    request = connection.cancel_conn()
    try:
        request.start()
        state: int = _WRITING
        while state in _WAITING:
            state = await _poll(request, request.poll, state)
    finally:
        request.finish()


async def execute(connection: PGconn, query: str, *, is_script: bool = False) -> PGresult:
    """The last result. Only a script may have several statements."""
    if is_script:
        connection.send_query(query.encode())
    else:
        connection.send_query_params(query.encode(), [])
    while connection.flush():
        await _wait_ready(connection.socket, to_write=True)
    last: PGresult | None = None
    error: Exception | None = None
    while (result := await _next_result(connection)) is not None:
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            error = error or _query_error(result)
            if result.status != pq.ExecStatus.FATAL_ERROR:
                raise error  # such as COPY, which waits for this side
        last = result
    if error is not None:
        raise error
    if last is None:
        raise PostgresqlError(connection.get_error_message())
    return last


async def _next_result(connection: PGconn) -> PGresult | None:
    for _ in range(_MAX_READS):
        if not connection.is_busy():
            return connection.get_result()
        while connection.notifies() is not None:
            pass  # libpq keeps them until they are read
        await _wait_ready(connection.socket, to_write=False)
        connection.consume_input()
    raise CheckError("the response does not end", ReasonCode.UNEXPECTED_RESPONSE)


def _query_error(result: PGresult) -> Exception:
    if not result.error_message:
        return CheckError("the query returned no result", ReasonCode.UNEXPECTED_RESPONSE)
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    return PostgresqlError(result.get_error_message(), sqlstate.decode("ascii", "replace"))


# ---- messages


def join_lines(message: str) -> str:
    """Without indented lines: hints, and the marker below a query."""
    return "; ".join(line for line in message.splitlines() if line and not line[0].isspace())


def last_error(text: str) -> str:
    """libpq joins the errors of several attempts."""
    return text.rpartition(" failed: ")[2]


def system_error(text: str) -> OSError | None:
    """The error of the operating system in a message."""
    number = _ERRNOS.get(last_error(join_lines(text)).removeprefix("could not create socket: "))
    return None if number is None else OSError(number, os.strerror(number))


def lowercase_system_errors(text: str) -> str:
    """The errors of the system in lower case, like those of other kinds; messages of the server unchanged."""
    clauses = [clause.rpartition(" failed: ") for clause in text.split("; ")]
    return "; ".join(
        f"{where}{failed}{error.lower() if error in _ERRNOS else error}" for where, failed, error in clauses
    )
