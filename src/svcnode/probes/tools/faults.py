"""Errors of the operating system and of TLS as verdicts: the service's fault, or our own."""

from __future__ import annotations

import errno
import socket

from svcnode.core.model import Verdict
from svcnode.core.wording import system_words

# We have run out of something ourselves; it says nothing about the service.
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN}
# The resolver did not work; a name that it says does not exist is another matter.
_RESOLVER_BROKEN = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM}


class NoThreadError(OSError):
    """This machine gives us no further thread."""


class WayError(OSError):
    """What stands between us and the service failed, so nothing was learned about the service."""


def verdict_on(exc: OSError, what: str) -> Verdict:
    """`what` was looked at, as a person would name it."""
    if isinstance(exc, socket.gaierror):
        reason = f"{words_of(exc)}: {what}"
        return Verdict.unknown(reason) if exc.errno in _RESOLVER_BROKEN else Verdict.failed(reason)
    if isinstance(exc, WayError):
        return Verdict.unknown(f"{exc}: {what}")
    if isinstance(exc, NoThreadError) or exc.errno in _OURS:
        return Verdict.unknown(f"this machine cannot look: {system_words(exc)}")
    return Verdict.failed(f"{words_of(exc)}: {what}")


def words_of(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror):
        return "the resolver failed" if exc.errno in _RESOLVER_BROKEN else "no such host"
    if verify_message := getattr(exc, "verify_message", None):  # ssl.SSLCertVerificationError
        return f"its certificate is not valid: {verify_message}"
    if type(exc).__module__ == "ssl" and (reason := getattr(exc, "reason", None)):
        return f"TLS: {str(reason).lower().replace('_', ' ')}"
    return system_words(exc) or "the connection was lost"
