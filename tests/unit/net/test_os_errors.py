"""Whose fault an error is, and in which words it is told."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest

from svcnode.core.model import Verdict
from svcnode.net.os_errors import ThreadStartError, connection_error_text, verdict_for_os_error


@pytest.mark.parametrize(
    "number",
    [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN],
    ids=errno.errorcode.get,
)
def test_what_this_machine_lacks_says_nothing_about_the_service(number: int) -> None:
    verdict = verdict_for_os_error(OSError(number, os.strerror(number)), "db:5432")
    assert verdict == Verdict.unknown(f"this machine cannot look: {os.strerror(number).lower()}")


def test_a_thread_that_is_not_to_be_had_says_nothing_about_the_service() -> None:
    verdict = verdict_for_os_error(ThreadStartError("no threads left"), "db:5432")
    assert verdict == Verdict.unknown("this machine cannot look: no threads left")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ECONNREFUSED, "connection refused"),
        (errno.ECONNRESET, "connection reset by peer"),
        (errno.EPIPE, "broken pipe"),
        (errno.ECONNABORTED, "software caused connection abort"),
        (errno.EHOSTUNREACH, "no route to host"),
        (errno.ENETUNREACH, "network is unreachable"),
        (errno.ETIMEDOUT, "connection timed out"),
        (errno.EACCES, "permission denied"),
    ],
)
def test_whatever_else_goes_wrong_is_the_failure_of_the_service(number: int, words: str) -> None:
    assert verdict_for_os_error(OSError(number, os.strerror(number)), "db:5432") == Verdict.failed(f"{words}: db:5432")


def test_the_words_are_those_of_the_system_whatever_a_loop_makes_of_them() -> None:
    refused = OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 5432)")
    assert verdict_for_os_error(refused, "db:5432").reason == "connection refused: db:5432"
    no_port_left = OSError(errno.EADDRNOTAVAIL, "Connect call failed ('127.0.0.1', 5432)")
    assert (
        verdict_for_os_error(no_port_left, "db:5432").reason
        == "this machine cannot look: cannot assign requested address"
    )


@pytest.mark.parametrize("number", [socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_FAMILY])
def test_a_name_that_the_resolver_does_not_know_is_the_failure_of_the_service(number: int) -> None:
    assert verdict_for_os_error(socket.gaierror(number, "whatever"), "db:5432") == Verdict.failed(
        "no such host: db:5432"
    )


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM])
def test_a_resolver_that_does_not_work_says_nothing_about_the_service(number: int) -> None:
    assert verdict_for_os_error(socket.gaierror(number, "whatever"), "db:5432") == Verdict.unknown(
        "the resolver failed: db:5432"
    )


def test_a_certificate_that_is_not_valid_is_told_with_its_reason() -> None:
    exc = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    exc.verify_message = "certificate has expired"
    assert verdict_for_os_error(exc, "db:5432") == Verdict.failed(
        "its certificate is not valid: certificate has expired: db:5432"
    )


def test_other_trouble_with_tls_is_told_in_words() -> None:
    exc = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    exc.reason = "WRONG_VERSION_NUMBER"
    assert verdict_for_os_error(exc, "db:5432") == Verdict.failed("TLS: wrong version number: db:5432")


def test_an_error_without_a_number_speaks_for_itself() -> None:
    assert verdict_for_os_error(ConnectionError("the proxy is asleep"), "db:5432") == Verdict.failed(
        "the proxy is asleep: db:5432"
    )


def test_an_error_without_a_word_is_a_lost_connection() -> None:
    assert verdict_for_os_error(ConnectionAbortedError(), "db:5432") == Verdict.failed(
        "the connection was lost: db:5432"
    )


@pytest.mark.parametrize(
    ("number", "words"), [(socket.EAI_NONAME, "no such host"), (socket.EAI_AGAIN, "the resolver failed")]
)
def test_a_name_that_was_not_found_is_told_in_words(number: int, words: str) -> None:
    assert connection_error_text(socket.gaierror(number, "Name or service not known")) == words
