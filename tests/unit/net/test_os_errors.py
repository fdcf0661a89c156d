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
    code_for_os_error,
    verdict_for_file_error,
    verdict_for_os_error,
)

TARGET = "db:5432"


def outcome_and_code(exc: OSError) -> tuple[Outcome, str]:
    verdict = verdict_for_os_error(exc, TARGET)
    return verdict.outcome, verdict.code


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "number",
    [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN],
    ids=errno.errorcode.get,
)
def test_exhausted_resources_of_this_machine_are_unknown(number: int) -> None:
    assert outcome_and_code(system_error(number)) == (Outcome.UNKNOWN, ReasonCode.RESOURCE_EXHAUSTED)


def test_a_thread_that_cannot_be_started_is_unknown() -> None:
    assert outcome_and_code(ThreadStartError()) == (Outcome.UNKNOWN, ReasonCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ECONNREFUSED, ReasonCode.CONNECTION_REFUSED),
        (errno.ECONNRESET, ReasonCode.CONNECTION_CLOSED),
        (errno.EPIPE, ReasonCode.CONNECTION_CLOSED),
        (errno.ECONNABORTED, ReasonCode.CONNECTION_CLOSED),
        (errno.EHOSTUNREACH, ReasonCode.NETWORK_UNREACHABLE),
        (errno.ENETUNREACH, ReasonCode.NETWORK_UNREACHABLE),
        (errno.ETIMEDOUT, ReasonCode.CONNECT_TIMEOUT),
        (errno.EACCES, ReasonCode.PERMISSION_DENIED),
        (errno.ENOENT, ReasonCode.FILE_NOT_FOUND),
        (errno.ENOTDIR, ReasonCode.FILE_NOT_FOUND),
        (errno.EISDIR, ReasonCode.NOT_A_FILE),
        (errno.ELOOP, ReasonCode.FILE_NOT_READABLE),
        (errno.EXDEV, ReasonCode.OTHER),
    ],
)
def test_other_errors_of_the_system_are_failures(number: int, code: ReasonCode) -> None:
    assert outcome_and_code(system_error(number)) == (Outcome.FAILED, code)


def test_a_file_that_may_not_be_read_is_not_readable() -> None:
    verdict = verdict_for_file_error(system_error(errno.EACCES), "/run/x")
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, ReasonCode.FILE_NOT_READABLE)
    assert verdict_for_file_error(system_error(errno.ENOENT), "/run/x").code is ReasonCode.FILE_NOT_FOUND


def test_the_reason_has_the_message_of_the_system_and_the_target() -> None:
    refused = OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 5432)")
    reason = verdict_for_os_error(refused, TARGET).reason
    assert os.strerror(errno.ECONNREFUSED).lower() in reason
    assert TARGET in reason


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_FAMILY])
def test_an_unknown_host_is_a_failure(number: int) -> None:
    assert outcome_and_code(socket.gaierror(number, "")) == (Outcome.FAILED, ReasonCode.HOST_NOT_FOUND)


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM])
def test_a_resolver_that_fails_is_unknown(number: int) -> None:
    assert outcome_and_code(socket.gaierror(number, "")) == (Outcome.UNKNOWN, ReasonCode.RESOLVER_FAILED)


@pytest.mark.parametrize(
    ("verify_code", "code"),
    [
        (10, ReasonCode.TLS_EXPIRED),
        (62, ReasonCode.TLS_NAME_MISMATCH),
        (64, ReasonCode.TLS_NAME_MISMATCH),
        (18, ReasonCode.TLS_UNTRUSTED),
        (20, ReasonCode.TLS_UNTRUSTED),
    ],
)
def test_a_certificate_error_has_a_code(verify_code: int, code: ReasonCode) -> None:
    exc = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    exc.verify_code, exc.verify_message = verify_code, "message of OpenSSL"
    assert outcome_and_code(exc) == (Outcome.FAILED, code)
    assert exc.verify_message in verdict_for_os_error(exc, TARGET).reason


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("WRONG_VERSION_NUMBER", ReasonCode.TLS_NOT_OFFERED),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", ReasonCode.AUTH_REQUIRED),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", ReasonCode.TLS_FAILED),
        (None, ReasonCode.TLS_FAILED),
    ],
)
def test_other_tls_errors_have_a_code(reason: str | None, code: ReasonCode) -> None:
    exc = ssl.SSLError(1, "[SSL] (_ssl.c:1006)")
    exc.reason = reason  # type: ignore[assignment]  # None for some errors
    assert outcome_and_code(exc) == (Outcome.FAILED, code)


def test_an_error_with_a_code_keeps_it() -> None:
    assert outcome_and_code(CodedOSError("too large", ReasonCode.UNEXPECTED_RESPONSE)) == (
        Outcome.FAILED,
        ReasonCode.UNEXPECTED_RESPONSE,
    )
    assert outcome_and_code(InconclusiveError("proxy", ReasonCode.PROXY_FAILED)) == (
        Outcome.UNKNOWN,
        ReasonCode.PROXY_FAILED,
    )


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (ConnectionAbortedError(), ReasonCode.CONNECTION_CLOSED),
        (TimeoutError(), ReasonCode.TIMEOUT),
        (OSError("anything"), ReasonCode.OTHER),
    ],
)
def test_an_error_without_a_number_has_a_code_by_its_type(exc: OSError, code: ReasonCode) -> None:
    assert code_for_os_error(exc) is code
    assert verdict_for_os_error(exc, TARGET).reason.endswith(TARGET)
