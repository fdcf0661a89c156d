"""Errors of the operating system and of TLS as verdicts: the service's fault, or our own."""

from __future__ import annotations

import errno
import socket

from svcnode.core.model import Verdict
from svcnode.core.text import os_error_text

# We have run out of something ourselves; it says nothing about the service.
_LOCAL_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
# The resolver did not work; a name that it says does not exist is another matter.
_RESOLVER_ERRNOS = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM}


class ThreadStartError(OSError):
    """This machine gives us no further thread."""


class InconclusiveError(OSError):
    """What stands between us and the service failed, so nothing was learned about the service."""


def verdict_for_os_error(exc: OSError, what: str) -> Verdict:
    """`what` was looked at, as a person would name it."""
    if isinstance(exc, socket.gaierror):
        reason = f"{connection_error_text(exc)}: {what}"
        return Verdict.unknown(reason) if exc.errno in _RESOLVER_ERRNOS else Verdict.failed(reason)
    if isinstance(exc, InconclusiveError):
        return Verdict.unknown(f"{exc}: {what}")
    if isinstance(exc, ThreadStartError) or exc.errno in _LOCAL_ERRNOS:
        return Verdict.unknown(f"this machine cannot look: {os_error_text(exc)}")
    return Verdict.failed(f"{connection_error_text(exc)}: {what}")


def connection_error_text(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror):
        return "the resolver failed" if exc.errno in _RESOLVER_ERRNOS else "no such host"
    if verify_message := getattr(exc, "verify_message", None):  # ssl.SSLCertVerificationError
        return f"its certificate is not valid: {verify_message}"
    if type(exc).__module__ == "ssl" and (reason := getattr(exc, "reason", None)):
        return f"TLS: {str(reason).lower().replace('_', ' ')}"
    return os_error_text(exc) or "the connection was lost"
