"""Errors of httpx as ClientErrors. tests/wording/test_client.py has the common ones, with their codes and texts."""

from __future__ import annotations

import errno
import ssl

import httpx2
import pytest

from svcnode.client.errors import translate_http_error
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnreachableError

URL = "http://node.example"


def caused(by: BaseException) -> httpx2.ConnectError:
    """As httpx raises it: its own error, caused by one of the library below, caused by one of the system."""
    outer, middle = httpx2.ConnectError("All connection attempts failed"), RuntimeError("of the library below")
    outer.__cause__ = middle
    middle.__context__ = by
    return outer


def certificate_error(code: int, message: str = "self-signed certificate") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message, error.verify_code = message, code
    return error


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (ConnectionResetError(errno.ECONNRESET, "x"), ReasonCode.CONNECTION_CLOSED),
        (certificate_error(1), ReasonCode.TLS_FAILED),
        (ExceptionGroup("all", [ConnectionRefusedError(errno.ECONNREFUSED, "x")]), ReasonCode.CONNECTION_REFUSED),
        (ValueError("unknown"), ReasonCode.OTHER),
    ],
)
def test_the_innermost_cause_decides(cause: Exception, code: ReasonCode) -> None:
    error = translate_http_error(caused(cause), URL)
    assert isinstance(error, UnreachableError)
    assert (error.code, error.url) == (code, URL)
    assert str(error).startswith(f"{error.problem}: {URL}")


def test_the_context_of_an_os_error_is_not_its_cause() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "x")
    refused.__context__ = PermissionError(errno.EACCES, "a file of the program")
    assert translate_http_error(caused(refused), URL).code is ReasonCode.CONNECTION_REFUSED
    assert translate_http_error(httpx2.ReadError(""), URL).problem == "ReadError", "without a text"


def test_only_a_plain_connection_that_ends_without_a_response_has_a_hint_at_tls() -> None:
    closed = httpx2.RemoteProtocolError("Server disconnected without sending a response.")
    assert "use https://" in str(translate_http_error(closed, URL))
    assert "use https://" not in str(translate_http_error(closed, URL.replace("http", "https")))
    expired = str(translate_http_error(caused(certificate_error(10)), URL))
    assert "--ca" not in expired
