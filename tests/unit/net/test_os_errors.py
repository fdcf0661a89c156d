"""Verdicts and reason codes for errors of the operating system, the resolver and TLS."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.net.os_errors import (
    CodedOSError,
    InconclusiveError,
    ThreadStartError,
    verdict_for_file_error,
    verdict_for_os_error,
)

TARGET = "db:5432"


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def certificate_error(verify_code: int) -> ssl.SSLError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_code, error.verify_message = verify_code, "message of OpenSSL"
    return error


def tls_error(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] (_ssl.c:1006)")
    error.reason = reason  # type: ignore[assignment]  # None for some errors
    return error


EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN)
RESOLVER = (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM)
NO_HOST = (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_FAMILY)
CLOSED = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
UNKNOWN: dict[ReasonCode, list[OSError]] = {
    ReasonCode.RESOURCE_EXHAUSTED: [*map(system_error, EXHAUSTED), ThreadStartError()],
    ReasonCode.RESOLVER_FAILED: [socket.gaierror(number, "") for number in RESOLVER],
    ReasonCode.PROXY_FAILED: [InconclusiveError("proxy", ReasonCode.PROXY_FAILED)],
}
FAILED: dict[ReasonCode, list[OSError]] = {
    ReasonCode.CONNECTION_REFUSED: [system_error(errno.ECONNREFUSED)],
    ReasonCode.CONNECTION_CLOSED: [*map(system_error, CLOSED), ConnectionAbortedError()],
    ReasonCode.NETWORK_UNREACHABLE: [*map(system_error, (errno.EHOSTUNREACH, errno.ENETUNREACH))],
    ReasonCode.CONNECT_TIMEOUT: [system_error(errno.ETIMEDOUT)],
    ReasonCode.TIMEOUT: [TimeoutError()],
    ReasonCode.PERMISSION_DENIED: [system_error(errno.EACCES)],
    ReasonCode.FILE_NOT_FOUND: [*map(system_error, (errno.ENOENT, errno.ENOTDIR))],
    ReasonCode.NOT_A_FILE: [system_error(errno.EISDIR)],
    ReasonCode.FILE_NOT_READABLE: [system_error(errno.ELOOP)],
    ReasonCode.HOST_NOT_FOUND: [socket.gaierror(number, "") for number in NO_HOST],
    ReasonCode.TLS_EXPIRED: [certificate_error(10)],
    ReasonCode.TLS_NAME_MISMATCH: [certificate_error(62), certificate_error(64)],
    ReasonCode.TLS_UNTRUSTED: [certificate_error(18)],
    ReasonCode.TLS_NOT_OFFERED: [tls_error("WRONG_VERSION_NUMBER")],
    ReasonCode.AUTH_REQUIRED: [tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED")],
    ReasonCode.TLS_FAILED: [tls_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), tls_error(None)],
    ReasonCode.UNEXPECTED_RESPONSE: [CodedOSError("too large", ReasonCode.UNEXPECTED_RESPONSE)],
    ReasonCode.OTHER: [system_error(errno.EXDEV), OSError("anything")],
}


@pytest.mark.parametrize(("outcome", "errors"), [(Outcome.UNKNOWN, UNKNOWN), (Outcome.FAILED, FAILED)])
def test_only_an_error_of_this_machine_is_unknown(outcome: Outcome, errors: dict[ReasonCode, list[OSError]]) -> None:
    for code, expected in errors.items():
        for exc in expected:
            verdict = verdict_for_os_error(exc, TARGET)
            assert (verdict.outcome, verdict.code) == (outcome, code), exc


def test_a_file_that_may_not_be_read_is_not_readable() -> None:
    verdict = verdict_for_file_error(system_error(errno.EACCES), "/run/x")
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, ReasonCode.FILE_NOT_READABLE)
    assert verdict_for_file_error(system_error(errno.ENOENT), "/run/x").code is ReasonCode.FILE_NOT_FOUND
