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


UNKNOWN: list[tuple[OSError, ReasonCode]] = [
    *(
        (system_error(number), ReasonCode.RESOURCE_EXHAUSTED)
        for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN)
    ),
    (ThreadStartError(), ReasonCode.RESOURCE_EXHAUSTED),
    *(
        (socket.gaierror(number, ""), ReasonCode.RESOLVER_FAILED)
        for number in (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM)
    ),
    (InconclusiveError("proxy", ReasonCode.PROXY_FAILED), ReasonCode.PROXY_FAILED),
]
FAILED: list[tuple[OSError, ReasonCode]] = [
    (system_error(errno.ECONNREFUSED), ReasonCode.CONNECTION_REFUSED),
    (system_error(errno.ECONNRESET), ReasonCode.CONNECTION_CLOSED),
    (system_error(errno.EPIPE), ReasonCode.CONNECTION_CLOSED),
    (system_error(errno.ECONNABORTED), ReasonCode.CONNECTION_CLOSED),
    (system_error(errno.EHOSTUNREACH), ReasonCode.NETWORK_UNREACHABLE),
    (system_error(errno.ENETUNREACH), ReasonCode.NETWORK_UNREACHABLE),
    (system_error(errno.ETIMEDOUT), ReasonCode.CONNECT_TIMEOUT),
    (system_error(errno.EACCES), ReasonCode.PERMISSION_DENIED),
    (system_error(errno.ENOENT), ReasonCode.FILE_NOT_FOUND),
    (system_error(errno.ENOTDIR), ReasonCode.FILE_NOT_FOUND),
    (system_error(errno.EISDIR), ReasonCode.NOT_A_FILE),
    (system_error(errno.ELOOP), ReasonCode.FILE_NOT_READABLE),
    (system_error(errno.EXDEV), ReasonCode.OTHER),
    (socket.gaierror(socket.EAI_NONAME, ""), ReasonCode.HOST_NOT_FOUND),
    (socket.gaierror(socket.EAI_NODATA, ""), ReasonCode.HOST_NOT_FOUND),
    (socket.gaierror(socket.EAI_FAMILY, ""), ReasonCode.HOST_NOT_FOUND),
    (certificate_error(10), ReasonCode.TLS_EXPIRED),
    (certificate_error(62), ReasonCode.TLS_NAME_MISMATCH),
    (certificate_error(64), ReasonCode.TLS_NAME_MISMATCH),
    (certificate_error(18), ReasonCode.TLS_UNTRUSTED),
    (tls_error("WRONG_VERSION_NUMBER"), ReasonCode.TLS_NOT_OFFERED),
    (tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), ReasonCode.AUTH_REQUIRED),
    (tls_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), ReasonCode.TLS_FAILED),
    (tls_error(None), ReasonCode.TLS_FAILED),
    (CodedOSError("too large", ReasonCode.UNEXPECTED_RESPONSE), ReasonCode.UNEXPECTED_RESPONSE),
    (ConnectionAbortedError(), ReasonCode.CONNECTION_CLOSED),
    (TimeoutError(), ReasonCode.TIMEOUT),
    (OSError("anything"), ReasonCode.OTHER),
]


@pytest.mark.parametrize(
    ("exc", "outcome", "code"),
    [*((exc, Outcome.UNKNOWN, code) for exc, code in UNKNOWN), *((exc, Outcome.FAILED, code) for exc, code in FAILED)],
    ids=repr,
)
def test_only_an_error_of_this_machine_is_unknown(exc: OSError, outcome: Outcome, code: ReasonCode) -> None:
    verdict = verdict_for_os_error(exc, TARGET)
    assert (verdict.outcome, verdict.code) == (outcome, code)


def test_a_file_that_may_not_be_read_is_not_readable() -> None:
    verdict = verdict_for_file_error(system_error(errno.EACCES), "/run/x")
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, ReasonCode.FILE_NOT_READABLE)
    assert verdict_for_file_error(system_error(errno.ENOENT), "/run/x").code is ReasonCode.FILE_NOT_FOUND
