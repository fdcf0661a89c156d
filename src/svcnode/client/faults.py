"""The errors of httpx as ours: translated once, with the words of the one at the bottom."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import TYPE_CHECKING

import httpx2

from svcnode.core.errors import ClientError, NotThisInterfaceError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator


_NOT_TLS = {"HTTP_REQUEST", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}


def translated(exc: httpx2.HTTPError, url: str) -> ClientError:
    # The bytes that it is about stand behind its words, in the form of the library.
    words = re.sub(r":? ?bytearray\(.*", "", str(exc), flags=re.DOTALL)
    match exc:
        case httpx2.RemoteProtocolError() if "disconnected" in words or "closed" in words:
            return UnreachableError(f"cannot reach {url}: the connection was closed before the answer was complete")
        case httpx2.RemoteProtocolError():
            return NotThisInterfaceError(f"expected HTTP, got what breaks its rules at {url}: {words}")
        case httpx2.DecodingError():
            return NotThisInterfaceError(f"got a body that is not encoded as its Content-Encoding says at {url}")
        case _:
            return UnreachableError(f"cannot reach {url}: {_reason(exc)}")


def _reason(exc: BaseException) -> str:
    *_, deepest = (_words(one) for one in _causes(exc) if _words(one))
    return deepest


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """From the outermost to the one that everything began with."""
    yield exc
    for inner in getattr(exc, "exceptions", ()):
        yield from _causes(inner)
    # What stands behind an error of the system is whatever else the program was busy with.
    if (cause := exc.__cause__ or (None if isinstance(exc, OSError) else exc.__context__)) is not None:
        yield from _causes(cause)


def _words(exc: BaseException) -> str:
    match exc:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {exc.verify_message.rstrip('.')}"
        case ssl.SSLError():
            is_plain = exc.reason in _NOT_TLS
            return "it does not speak TLS; is it http://?" if is_plain else f"TLS failed: {exc.reason}"
        case socket.gaierror():
            return f"its name cannot be resolved: {exc.strerror}"
        case OSError() if exc.errno:
            return os.strerror(exc.errno)
        case OSError() | httpx2.HTTPError():
            return str(exc) or type(exc).__name__
        case _:
            return ""
