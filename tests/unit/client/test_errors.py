"""What kept a request from its answer, in the words of whatever it began with."""

from __future__ import annotations

import errno
import socket
import ssl

import httpx2
import pytest

from svcnode.client.errors import translate_http_error
from svcnode.core.errors import UnexpectedResponseError, UnreachableError

URL = "http://node.example"


def caused(by: BaseException) -> httpx2.ConnectError:
    """As httpx has it: its own error, for one of the library below, for one of the system."""
    outer, middle = httpx2.ConnectError("All connection attempts failed"), RuntimeError("of the library below")
    outer.__cause__ = middle
    middle.__context__ = by
    return outer


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "connection refused"),
        (OSError(errno.ENETUNREACH, "x"), "network is unreachable"),
        (OSError(errno.EMFILE, "x"), "too many open files"),
        (socket.gaierror(-2, "Name or service not known"), "its name cannot be resolved: name or service not known"),
        (ssl_error("WRONG_VERSION_NUMBER"), "it does not speak TLS; is it http://?"),
        (ssl_error("TLSV1_ALERT_PROTOCOL_VERSION"), "TLS failed: TLSV1_ALERT_PROTOCOL_VERSION"),
        (ExceptionGroup("all of them", [ConnectionRefusedError(errno.ECONNREFUSED, "x")]), "connection refused"),
        (ValueError("nothing that we have words for"), "All connection attempts failed"),
    ],
)
def test_the_reason_is_what_everything_began_with(cause: Exception, words: str) -> None:
    error = translate_http_error(caused(cause), URL)
    assert isinstance(error, UnreachableError)
    assert str(error) == f"cannot reach {URL}: {words}"


def test_what_the_program_was_busy_with_is_not_taken_for_the_reason() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "x")
    refused.__context__ = PermissionError(errno.EACCES, "a file of the program")
    assert str(translate_http_error(caused(refused), URL)).endswith(": connection refused")


def test_an_error_without_words_has_a_name() -> None:
    assert str(translate_http_error(httpx2.ReadError(""), URL)) == f"cannot reach {URL}: ReadError"


@pytest.mark.parametrize(
    "text",
    [
        "Server disconnected without sending a response.",
        "peer closed connection without sending complete message body (received 1 bytes, expected 99)",
    ],
)
def test_an_answer_that_breaks_off_is_not_taken_for_another_protocol(text: str) -> None:
    assert isinstance(translate_http_error(httpx2.RemoteProtocolError(text), URL), UnreachableError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("illegal header line: bytearray(b'closed')", "illegal header line"),
        ("illegal chunk header: bytearray(b'x\\n\\ny')", "illegal chunk header"),
        ("illegal request line", "illegal request line"),
    ],
)
def test_http_that_breaks_its_rules_is_not_this_interface_and_is_told_without_the_bytes(text: str, words: str) -> None:
    error = translate_http_error(httpx2.RemoteProtocolError(text), URL)
    assert isinstance(error, UnexpectedResponseError)
    assert str(error) == f"expected HTTP, got what breaks its rules at {URL}: {words}"


def test_a_body_that_cannot_be_decoded_is_told_without_the_words_of_the_decoder() -> None:
    error = translate_http_error(httpx2.DecodingError("Error -3 while decompressing data: incorrect header check"), URL)
    assert isinstance(error, UnexpectedResponseError)
    assert str(error) == f"got a body that is not encoded as its Content-Encoding says at {URL}"


def test_a_reason_ends_without_a_full_stop() -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message, untrusted.verify_code = "Hostname mismatch, certificate is not valid for 'h'.", 62
    assert str(translate_http_error(caused(untrusted), URL)).endswith(
        "Hostname mismatch, certificate is not valid for 'h'"
    )


@pytest.mark.parametrize(
    ("has_own_ca", "hint"),
    [(False, "name its authority with ca (--ca)"), (True, "what ca (--ca) names is not its authority")],
)
def test_an_authority_that_is_not_trusted_comes_with_advice(has_own_ca: bool, hint: str) -> None:
    untrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    untrusted.verify_message, untrusted.verify_code = "self-signed certificate", 18
    error = translate_http_error(caused(untrusted), URL, has_custom_ca=has_own_ca)
    assert str(error) == f"cannot reach {URL}: its certificate is not trusted: self-signed certificate; {hint}"


@pytest.mark.parametrize(("url", "hint"), [("http://h:1", "; is it https://?"), ("https://h:1", "")])
def test_a_server_that_closes_without_a_word_may_expect_tls(url: str, hint: str) -> None:
    error = translate_http_error(httpx2.RemoteProtocolError("Server disconnected without sending a response."), url)
    assert isinstance(error, UnreachableError)
    assert str(error) == f"cannot reach {url}: the connection was closed without an answer{hint}"
