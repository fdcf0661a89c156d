"""Verdicts and reason codes for errors of the operating system, the DNS resolver and TLS."""

from __future__ import annotations

import errno
import socket

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.text import os_error_text

_RESOLVER_ERRNOS = {socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM}
_CODES_BY_ERRNO = {
    errno.EMFILE: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ENFILE: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ENOBUFS: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ENOMEM: ReasonCode.RESOURCE_EXHAUSTED,
    errno.EADDRNOTAVAIL: ReasonCode.RESOURCE_EXHAUSTED,  # no local port left
    errno.EAGAIN: ReasonCode.RESOURCE_EXHAUSTED,
    errno.ECONNREFUSED: ReasonCode.CONNECTION_REFUSED,
    errno.ECONNRESET: ReasonCode.CONNECTION_CLOSED,
    errno.ECONNABORTED: ReasonCode.CONNECTION_CLOSED,
    errno.EPIPE: ReasonCode.CONNECTION_CLOSED,
    errno.ETIMEDOUT: ReasonCode.CONNECT_TIMEOUT,
    errno.EHOSTUNREACH: ReasonCode.NETWORK_UNREACHABLE,
    errno.ENETUNREACH: ReasonCode.NETWORK_UNREACHABLE,
    errno.EHOSTDOWN: ReasonCode.NETWORK_UNREACHABLE,
    errno.ENETDOWN: ReasonCode.NETWORK_UNREACHABLE,
    errno.EACCES: ReasonCode.PERMISSION_DENIED,
    errno.EPERM: ReasonCode.PERMISSION_DENIED,
    errno.ENOENT: ReasonCode.FILE_NOT_FOUND,
    errno.ENOTDIR: ReasonCode.FILE_NOT_FOUND,
    errno.EISDIR: ReasonCode.NOT_A_FILE,
    errno.ELOOP: ReasonCode.FILE_NOT_READABLE,
    errno.ENAMETOOLONG: ReasonCode.FILE_NOT_READABLE,
    errno.EIO: ReasonCode.FILE_NOT_READABLE,
}
# X509_V_ERR_… of OpenSSL; every other one means that the certificate is not trusted.
_CODES_BY_VERIFY_CODE = {
    10: ReasonCode.TLS_EXPIRED,
    62: ReasonCode.TLS_NAME_MISMATCH,  # host name
    64: ReasonCode.TLS_NAME_MISMATCH,  # IP address
}
_CODES_BY_TLS_REASON = {
    "WRONG_VERSION_NUMBER": ReasonCode.TLS_NOT_OFFERED,
    "UNKNOWN_PROTOCOL": ReasonCode.TLS_NOT_OFFERED,
    "RECORD_LAYER_FAILURE": ReasonCode.TLS_NOT_OFFERED,
    "PACKET_LENGTH_TOO_LONG": ReasonCode.TLS_NOT_OFFERED,
    "HTTP_REQUEST": ReasonCode.TLS_NOT_OFFERED,
    "UNEXPECTED_EOF_WHILE_READING": ReasonCode.CONNECTION_CLOSED,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ReasonCode.AUTH_REQUIRED,
}
# The fault is on this machine, so nothing was learned about the service.
_UNKNOWN_CODES = {ReasonCode.RESOURCE_EXHAUSTED, ReasonCode.RESOLVER_FAILED}


class CodedOSError(OSError):
    """An OSError with the reason code of the verdict."""

    def __init__(self, text: str, code: ReasonCode) -> None:
        super().__init__(text)
        self.code = code


class InconclusiveError(CodedOSError):
    """The check failed before it reached the service, for example at a proxy. The verdict is `unknown`."""


class ThreadStartError(CodedOSError):
    """The operating system refused to start a thread."""

    def __init__(self) -> None:
        super().__init__("can't start new thread", ReasonCode.RESOURCE_EXHAUSTED)


def verdict_for_os_error(exc: OSError, target: str) -> Verdict:
    """`failed`, or `unknown` if the fault is on this machine. The target is the URL, address or path of the check."""
    code = code_for_os_error(exc)
    if code is ReasonCode.RESOURCE_EXHAUSTED:
        return Verdict.unknown(f"check not run: {os_error_text(exc)}", code=code)
    reason = f"{connection_error_text(exc)}: {target}"
    if code in _UNKNOWN_CODES or isinstance(exc, InconclusiveError):
        return Verdict.unknown(reason, code=code)
    return Verdict.failed(reason, code=code)


def verdict_for_file_error(exc: OSError, path: str) -> Verdict:
    """As `verdict_for_os_error`, for a file or directory on this machine."""
    if isinstance(exc, PermissionError):
        return Verdict.failed(f"{os_error_text(exc)}: {path}", code=ReasonCode.FILE_NOT_READABLE)
    return verdict_for_os_error(exc, path)


def code_for_os_error(exc: OSError) -> ReasonCode:
    if isinstance(exc, CodedOSError):
        return exc.code
    if isinstance(exc, socket.gaierror):
        return ReasonCode.RESOLVER_FAILED if exc.errno in _RESOLVER_ERRNOS else ReasonCode.HOST_NOT_FOUND
    if _is_tls_error(exc):
        return _code_for_tls_error(exc)
    if code := _CODES_BY_ERRNO.get(exc.errno or 0):
        return code
    if isinstance(exc, TimeoutError):
        return ReasonCode.TIMEOUT
    return ReasonCode.CONNECTION_CLOSED if isinstance(exc, ConnectionError) else ReasonCode.OTHER


def _is_tls_error(exc: OSError) -> bool:
    """The module ssl is not imported for this: most checks do not need it."""
    return type(exc).__module__ == "ssl"


def _code_for_tls_error(exc: OSError) -> ReasonCode:
    if getattr(exc, "verify_message", None):  # ssl.SSLCertVerificationError
        return _CODES_BY_VERIFY_CODE.get(getattr(exc, "verify_code", 0), ReasonCode.TLS_UNTRUSTED)
    return _CODES_BY_TLS_REASON.get(getattr(exc, "reason", None) or "", ReasonCode.TLS_FAILED)


def connection_error_text(exc: OSError) -> str:
    if isinstance(exc, socket.gaierror):
        return "DNS resolver failed" if exc.errno in _RESOLVER_ERRNOS else "host not found"
    if verify_message := getattr(exc, "verify_message", None):
        return f"certificate verify failed: {verify_message.rstrip('.')}"
    if _is_tls_error(exc):  # its errno is not one of the system
        return f"TLS error: {str(getattr(exc, 'reason', None) or 'unknown').lower().replace('_', ' ')}"
    return os_error_text(exc) or "connection closed"
