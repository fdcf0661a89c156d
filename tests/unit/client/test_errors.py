"""Errors of httpx as ClientErrors."""

from __future__ import annotations

import errno
import socket
import ssl

import httpx2
import pytest

from svcnode.client.errors import translate_http_error
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnexpectedResponseError, UnreachableError

URL = "http://node.example"


def caused(by: BaseException) -> httpx2.ConnectError:
    """As httpx raises it: its own error, caused by one of the library below, caused by one of the system."""
    outer, middle = httpx2.ConnectError("All connection attempts failed"), RuntimeError("of the library below")
    outer.__cause__ = middle
    middle.__context__ = by
    return outer


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


def certificate_error(code: int, message: str = "self-signed certificate") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message, error.verify_code = message, code
    return error


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), ReasonCode.CONNECTION_REFUSED),
        (ConnectionResetError(errno.ECONNRESET, "x"), ReasonCode.CONNECTION_CLOSED),
        (OSError(errno.ENETUNREACH, "x"), ReasonCode.NETWORK_UNREACHABLE),
        (OSError(errno.EMFILE, "x"), ReasonCode.RESOURCE_EXHAUSTED),
        (FileNotFoundError(errno.ENOENT, "x"), ReasonCode.FILE_NOT_FOUND),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), ReasonCode.HOST_NOT_FOUND),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), ReasonCode.RESOLVER_FAILED),
        (ssl_error("WRONG_VERSION_NUMBER"), ReasonCode.TLS_NOT_OFFERED),
        (ssl_error("TLSV1_ALERT_PROTOCOL_VERSION"), ReasonCode.TLS_FAILED),
        (certificate_error(18), ReasonCode.TLS_UNTRUSTED),
        (certificate_error(10), ReasonCode.TLS_EXPIRED),
        (certificate_error(62), ReasonCode.TLS_NAME_MISMATCH),
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


def test_an_error_without_a_text_has_the_name_of_its_type() -> None:
    assert translate_http_error(httpx2.ReadError(""), URL).problem == "ReadError"


@pytest.mark.parametrize(
    "text",
    [
        "Server disconnected without sending a response.",
        "peer closed connection without sending complete message body (received 1 bytes, expected 99)",
    ],
)
def test_a_response_that_breaks_off_is_not_another_protocol(text: str) -> None:
    error = translate_http_error(httpx2.RemoteProtocolError(text), URL)
    assert isinstance(error, UnreachableError)
    assert error.code is ReasonCode.CONNECTION_CLOSED


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("illegal header line: bytearray(b'closed')", "illegal header line"),
        ("illegal chunk header: bytearray(b'x\\n\\ny')", "illegal chunk header"),
        ("illegal request line", "illegal request line"),
    ],
)
def test_invalid_http_is_an_unexpected_response_shown_without_its_bytes(text: str, shown: str) -> None:
    error = translate_http_error(httpx2.RemoteProtocolError(text), URL)
    assert isinstance(error, UnexpectedResponseError)
    assert error.code is ReasonCode.PROTOCOL_ERROR
    assert error.problem.endswith(f": {shown}")


def test_a_body_that_cannot_be_decoded_is_shown_without_the_text_of_the_decoder() -> None:
    error = translate_http_error(httpx2.DecodingError("Error -3: incorrect check"), URL)
    assert isinstance(error, UnexpectedResponseError)
    assert error.code is ReasonCode.PROTOCOL_ERROR
    assert "-3" not in str(error)


def test_a_problem_ends_without_a_full_stop() -> None:
    assert translate_http_error(caused(certificate_error(62, "Hostname mismatch.")), URL).problem[-1] == "h"


def test_an_untrusted_authority_comes_with_a_hint_about_ca() -> None:
    texts = {
        str(translate_http_error(caused(certificate_error(18)), URL, has_custom_ca=has_custom_ca))
        for has_custom_ca in (False, True)
    }
    assert len(texts) == 2
    assert all("(--ca)" in text for text in texts)
    assert "--ca" not in str(translate_http_error(caused(certificate_error(10)), URL))


@pytest.mark.parametrize(("url", "has_hint"), [("http://h:1", True), ("https://h:1", False)])
def test_a_server_that_closes_without_a_response_may_expect_tls(url: str, has_hint: bool) -> None:
    error = translate_http_error(httpx2.RemoteProtocolError("Server disconnected without sending a response."), url)
    assert str(error).endswith("; if the server uses TLS, use https://") == has_hint
