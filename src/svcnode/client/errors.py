"""The errors of httpx as ours: translated once, with the words of the one at the bottom."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING

import httpx2

from svcnode.core.errors import ClientError, UnexpectedResponseError, UnreachableError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Iterator


# Of OpenSSL, for a certificate that nobody who is trusted has signed: X509_V_ERR_… of an issuer or a signature.
_UNTRUSTED_ISSUER_CODES = {2, 18, 19, 20, 21}
_NOT_TLS_REASONS = {"HTTP_REQUEST", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}


def translate_http_error(exc: httpx2.HTTPError, url: str, *, has_custom_ca: bool = False) -> ClientError:
    # The bytes that it is about stand behind its words, in the form of the library.
    words = re.sub(r":? ?bytearray\(.*", "", str(exc), flags=re.DOTALL)
    match exc:
        case httpx2.RemoteProtocolError() if "without sending a response" in words:
            hint = "; is it https://?" if url.startswith("http:") else ""
            return UnreachableError(f"cannot reach {url}: the connection was closed without an answer{hint}")
        case httpx2.RemoteProtocolError() if "disconnected" in words or "closed" in words:
            return UnreachableError(f"cannot reach {url}: the connection was closed before the answer was complete")
        case httpx2.RemoteProtocolError():
            return UnexpectedResponseError(f"expected HTTP, got what breaks its rules at {url}: {words}")
        case httpx2.DecodingError():
            return UnexpectedResponseError(f"got a body that is not encoded as its Content-Encoding says at {url}")
        case _:
            return UnreachableError(
                f"cannot reach {url}: {_root_cause_text(exc)}{_ca_hint(exc, has_custom_ca=has_custom_ca)}"
            )


def _root_cause_text(exc: BaseException) -> str:
    *_, deepest = (_error_text(one) for one in _iter_causes(exc) if _error_text(one))
    return deepest


def _ca_hint(exc: BaseException, *, has_custom_ca: bool) -> str:
    codes = {one.verify_code for one in _iter_causes(exc) if isinstance(one, ssl.SSLCertVerificationError)}
    if not codes & _UNTRUSTED_ISSUER_CODES:
        return ""
    return "; what ca (--ca) names is not its authority" if has_custom_ca else "; name its authority with ca (--ca)"


def _iter_causes(exc: BaseException) -> Iterator[BaseException]:
    """From the outermost to the one that everything began with."""
    yield exc
    for inner in getattr(exc, "exceptions", ()):
        yield from _iter_causes(inner)
    # What stands behind an error of the system is whatever else the program was busy with.
    if (cause := exc.__cause__ or (None if isinstance(exc, OSError) else exc.__context__)) is not None:
        yield from _iter_causes(cause)


def _error_text(exc: BaseException) -> str:
    match exc:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {exc.verify_message.rstrip('.')}"
        case ssl.SSLError():
            is_plain = exc.reason in _NOT_TLS_REASONS
            return "it does not speak TLS; is it http://?" if is_plain else f"TLS failed: {exc.reason}"
        case socket.gaierror():
            return f"its name cannot be resolved: {os_error_text(exc)}"
        case OSError() if exc.errno:
            return os_error_text(exc)
        case OSError() | httpx2.HTTPError():
            return str(exc) or type(exc).__name__
        case _:
            return ""
