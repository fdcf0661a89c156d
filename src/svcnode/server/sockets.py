"""Bound sockets and TLS contexts, made from the settings, with errors that say what to do."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError, ListenError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from svcnode.core.address import Address


def bind(address: Address, set_by: str | None = None) -> socket.socket:
    """A socket bound to the address and ready to be listened on; an error says what to change for another place."""
    try:
        return _bind_unix(Path(address.path)) if address.scheme == "unix" else _bind_tcp(address)
    except OSError as exc:
        raise ListenError(
            f"cannot listen on {address}: {_bind_error_text(exc, address, set_by or '--listen')}"
        ) from exc
    except ValueError as exc:  # such as a label of more than 63 characters
        raise ListenError(f'cannot listen on {address}: "{address.host}" is not a host name') from exc


def _bind_tcp(address: Address) -> socket.socket:
    # As bytes, it needs none of the tables of names in other scripts.
    host = address.host.encode() if address.host.isascii() else address.host
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, place = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale_socket(path)
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale_socket(path: Path) -> None:
    """Take away a socket that nobody listens on any more; anything else in that place is left alone."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            knock.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            pass  # somebody listens, and has not come to answering the door for a while


def remove_unix_socket(address: Address) -> None:
    if address.scheme == "unix":
        Path(address.path).unlink(missing_ok=True)


def bound_url(sock: socket.socket, address: Address, path: str) -> str:
    """What a client would ask for, with the port that was really taken."""
    if address.scheme == "unix":
        return f"{address} (path {path})"
    host, port = sock.getsockname()[:2]
    return f"{address.scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


def _bind_error_text(exc: OSError, address: Address, set_by: str) -> str:
    match exc.errno:
        case errno.EADDRINUSE if address.path and not Path(address.path).is_socket():
            return f"a file that is no socket stands there; move it, or choose another place with {set_by}"
        case errno.EADDRINUSE:
            return f"something listens there already; stop it, or choose another place with {set_by}"
        case errno.EACCES | errno.EPERM:
            return "permission denied; ports below 1024 need a privilege, and a Unix socket a writable folder"
        case errno.EADDRNOTAVAIL:
            return f"this machine has no address {address.host}"
        case errno.ENOENT:
            return f"there is no folder {os.path.dirname(address.path)}"  # noqa: PTH120  "" for none, not "."
        case _:
            return os_error_text(exc)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_reject_passphrase)
    except _EncryptedKeyError:
        raise ConfigError(f"server.tls.key: {key} is encrypted; give the key without a passphrase") from None
    except ssl.SSLError as exc:
        raise ConfigError(_tls_error_text(certificate, key, exc.reason or "")) from exc
    except OSError as exc:
        raise ConfigError(f"server.tls: cannot read {certificate} and {key}: {os_error_text(exc)}") from exc
    return context


def _tls_error_text(certificate: Path, key: Path, reason: str) -> str:
    """OpenSSL says which of the two it did not like by a line of its source at most."""
    if reason == "KEY_VALUES_MISMATCH":
        return f"server.tls.key: {key} is not the key of {certificate}, but of another certificate"
    if not _holds_certificate(certificate):
        return f"server.tls.certificate: {certificate} holds no certificate in PEM form"
    if b"PRIVATE KEY-----" not in key.read_bytes() or not reason:
        return f"server.tls.key: {key} holds no private key in PEM form, or a damaged one"
    return f"server.tls: {certificate} and {key} cannot be used: {reason.lower().replace('_', ' ')}"


def _holds_certificate(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return False
    return True


class _EncryptedKeyError(Exception):
    pass


def _reject_passphrase() -> str:
    raise _EncryptedKeyError  # otherwise the passphrase would be asked for on the terminal
