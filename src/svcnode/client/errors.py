"""Turns the errors of httpx into ClientErrors, with the text of the innermost cause."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple

import httpx2

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ClientError, UnexpectedResponseError, UnreachableError
from svcnode.core.text import os_error_text
from svcnode.core.url import Url, UrlError

if TYPE_CHECKING:
    from collections.abc import Iterator

# OpenSSL: X509_V_ERR_… of a certificate whose issuer is not trusted, that has expired, or that is for another name.
_UNTRUSTED_ISSUER = {2, 18, 19, 20, 21}
_EXPIRED = {10}
_NAME_MISMATCH = {62, 64}
_NOT_TLS_REASONS = {"HTTP_REQUEST", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}
_CODES_BY_ERRNO = {
    errno.ECONNREFUSED: ReasonCode.CONNECTION_REFUSED,
    errno.ECONNRESET: ReasonCode.CONNECTION_CLOSED,
    errno.EPIPE: ReasonCode.CONNECTION_CLOSED,
    errno.ENETUNREACH: ReasonCode.NETWORK_UNREACHABLE,
    errno.EHOSTUNREACH: ReasonCode.NETWORK_UNREACHABLE,
    errno.ETIMEDOUT: ReasonCode.CONNECT_TIMEOUT,
    errno.ENOENT: ReasonCode.FILE_NOT_FOUND,
    errno.EACCES: ReasonCode.PERMISSION_DENIED,
    errno.EMFILE: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ENFILE: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ENOMEM: ReasonCode.RESOURCE_EXHAUSTED,
}


_PORT_CODES = (ReasonCode.CONNECTION_REFUSED, ReasonCode.CONNECT_TIMEOUT)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class _Cause(NamedTuple):
    problem: str
    code: ReasonCode
    hint: str = ""


def translate_http_error(exc: httpx2.HTTPError, url: str, *, has_custom_ca: bool = False) -> ClientError:
    text = re.sub(r":? ?bytearray\(.*", "", str(exc), flags=re.DOTALL)  # httpx appends the bytes it received
    match exc:
        case httpx2.RemoteProtocolError() if "without sending a response" in text:
            return UnreachableError(
                "connection closed without a response",
                url=url,
                hint="if the server uses TLS, use https://" if url.startswith("http:") else "",
                code=ReasonCode.CONNECTION_CLOSED,
            )
        case httpx2.RemoteProtocolError() if "disconnected" in text or "closed" in text:
            return UnreachableError(
                "connection closed before the response was complete", url=url, code=ReasonCode.CONNECTION_CLOSED
            )
        case httpx2.RemoteProtocolError():
            return UnexpectedResponseError(f"invalid HTTP: {text}", url=url, code=ReasonCode.PROTOCOL_ERROR)
        case httpx2.DecodingError():
            return UnexpectedResponseError(
                "the body is not encoded as Content-Encoding says", url=url, code=ReasonCode.PROTOCOL_ERROR
            )
        case _:
            cause = _root_cause(exc, has_custom_ca=has_custom_ca)
            problem = f"{cause.problem}{_default_port_text(url)}" if cause.code in _PORT_CODES else cause.problem
            return UnreachableError(problem, url=url, hint=cause.hint, code=cause.code)


def _default_port_text(url: str) -> str:
    """Names the port that a URL without one means; a Unix socket has none."""
    try:
        parsed = Url.parse(url, register_secrets=False)
    except UrlError:  # shortened for display
        return ""
    if parsed.scheme not in _DEFAULT_PORTS or parsed.port is not None:
        return ""
    return f" on port {_DEFAULT_PORTS[parsed.scheme]}, the default of {parsed.scheme}"


def os_error_code(exc: OSError) -> ReasonCode:
    return _CODES_BY_ERRNO.get(exc.errno or 0, ReasonCode.OTHER)


def _root_cause(exc: BaseException, *, has_custom_ca: bool) -> _Cause:
    *_, innermost = filter(None, (_cause(cause, has_custom_ca=has_custom_ca) for cause in _iter_causes(exc)))
    return innermost


def _iter_causes(exc: BaseException) -> Iterator[BaseException]:
    """From the outermost to the innermost."""
    yield exc
    for inner in getattr(exc, "exceptions", ()):
        yield from _iter_causes(inner)
    # The context of an OSError is unrelated: the program was handling another error.
    if (cause := exc.__cause__ or (None if isinstance(exc, OSError) else exc.__context__)) is not None:
        yield from _iter_causes(cause)


def _cause(exc: BaseException, *, has_custom_ca: bool) -> _Cause | None:
    match exc:
        case ssl.SSLError():
            return _tls_cause(exc, has_custom_ca=has_custom_ca)
        case socket.gaierror():
            is_temporary = exc.errno == socket.EAI_AGAIN
            code = ReasonCode.RESOLVER_FAILED if is_temporary else ReasonCode.HOST_NOT_FOUND
            return _Cause(f"cannot resolve the host name: {os_error_text(exc)}", code)
        case OSError() if exc.errno:
            return _Cause(os_error_text(exc), os_error_code(exc))
        case OSError() | httpx2.HTTPError():
            return _Cause(str(exc) or type(exc).__name__, ReasonCode.OTHER)
        case _:
            return None


def _tls_cause(exc: ssl.SSLError, *, has_custom_ca: bool) -> _Cause:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return _certificate_cause(exc, has_custom_ca=has_custom_ca)
    if exc.reason in _NOT_TLS_REASONS:
        return _Cause(
            "the server does not speak TLS", ReasonCode.TLS_NOT_OFFERED, "to connect without TLS, use http://"
        )
    return _Cause(f"TLS failed: {exc.reason}", ReasonCode.TLS_FAILED)


def _certificate_cause(exc: ssl.SSLCertVerificationError, *, has_custom_ca: bool) -> _Cause:
    problem = f"certificate not trusted: {exc.verify_message.rstrip('.')}"
    if exc.verify_code in _UNTRUSTED_ISSUER:
        hint = (
            "ca (--ca) does not contain its authority"
            if has_custom_ca
            else "if you trust it, name its authority with ca (--ca)"
        )
        return _Cause(problem, ReasonCode.TLS_UNTRUSTED, hint)
    if exc.verify_code in _EXPIRED:
        return _Cause(problem, ReasonCode.TLS_EXPIRED)
    return _Cause(problem, ReasonCode.TLS_NAME_MISMATCH if exc.verify_code in _NAME_MISMATCH else ReasonCode.TLS_FAILED)
