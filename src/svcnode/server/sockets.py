"""Binds sockets and loads TLS certificates."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import ConfigError, ListenError
from svcnode.core.text import os_error_text
from svcnode.net.files import MAX_PEM_BYTES, READ_TIMEOUT_S, read_small_file
from svcnode.net.threads import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.core.address import Address


def bind(address: Address, set_by: str | None = None) -> socket.socket:
    """A socket bound to the address. `set_by` is the option or key that sets the address, for the error message."""
    try:
        return _bind_unix(Path(address.path)) if address.scheme == "unix" else _bind_tcp(address)
    except OSError as exc:
        raise listen_error(exc, address, set_by) from exc
    except ValueError as exc:  # for example a label of more than 63 characters
        raise ListenError(f'cannot listen on {address}: invalid host name "{address.host}"') from exc


def listen_error(exc: OSError, address: Address, set_by: str | None) -> ListenError:
    problem = _bind_error_text(exc, address, set_by or "--listen or SVCNODE_SERVER_LISTEN")
    return ListenError(f"cannot listen on {address}: {problem}")


def overlapping(address: Address, others: Iterable[Address]) -> Address | None:
    """The first one that leaves no room for this address. `bind` does not notice it, only the second that listens."""
    resolved = _resolved(address)
    return next((other for other in others if resolved.port and resolved.overlaps(_resolved(other))), None)


def _resolved(address: Address) -> Address:
    if address.scheme == "unix":
        return address
    try:
        return address._replace(host=_resolve(address)[1][0])
    except (OSError, ValueError):  # `bind` reports it
        return address


def is_bound_to(sock: socket.socket, address: Address) -> bool:
    """Whether `bind` would bind a socket to the same address."""
    if address.scheme == "unix":
        return sock.family == socket.AF_UNIX and sock.getsockname() == address.path
    try:
        return (sock.family, sock.getsockname()) == _resolve(address)
    except (OSError, ValueError):  # `bind` reports it
        return False


def _resolve(address: Address) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    # Bytes, because a str makes Python import the IDNA codec.
    host = address.host.encode() if address.host.isascii() else address.host
    candidates = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, socket_address = candidates[0]
    return family, socket_address


def _bind_tcp(address: Address) -> socket.socket:
    family, socket_address = _resolve(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(socket_address)
    except OSError:
        sock.close()
        raise
    return sock


class _UnixSocket(socket.socket):
    """A socket that knows the file it has created."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = Path()
        self.file_identity: tuple[int, int] | None = None  # device and inode; None if the path is not bound

    def bind_path(self, path: Path) -> None:
        self.bind(str(path))
        self.path, self.file_identity = path, _file_identity(path)


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def bind_private(path: Path, group_id: int | None = None) -> socket.socket:
    """A Unix socket that only this user, and the members of the group, can connect to. Raises OSError."""
    path.parent.mkdir(mode=0o700 if group_id is None else 0o755, parents=True, exist_ok=True)
    sock = _bind_unix(path, mode=0o600)
    if group_id is not None:
        try:
            os.chown(path, -1, group_id, follow_symlinks=False)
            path.chmod(0o660)  # a mode before `bind` would be reduced by the umask
        except OSError:
            remove_unix_socket(sock)
            sock.close()
            raise
    return sock


def peer_user(sock: socket.socket, group_id: int | None = None) -> str | None:
    """The user of the process at the other end of a Unix socket; None if it is not this one, root or in the group."""
    _, user_id, peer_group_id = struct.unpack("3I", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    is_allowed = user_id in (0, os.geteuid()) or (
        group_id is not None and (peer_group_id == group_id or _is_in_group(sock, group_id))
    )
    return _user_name(user_id) if is_allowed else None


def _is_in_group(sock: socket.socket, group_id: int) -> bool:
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return False
    return group_id in struct.unpack(f"{len(groups) // 4}I", groups)


def _user_name(user_id: int) -> str:
    """Of the local users. A directory of others is not asked: the node would stop while it does not respond."""
    try:
        lines = Path("/etc/passwd").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (fields[0] for fields in (line.split(":") for line in lines) if fields[2:3] == [str(user_id)])
    return next(names, str(user_id))


_SO_PEERGROUPS = 59  # of Linux; the socket module has no name for it
_MAX_GROUPS = 256  # Python's `getsockopt` returns at most 1024 bytes


def _bind_unix(path: Path, mode: int | None = None) -> socket.socket:
    sock = _UnixSocket()
    try:
        _remove_stale_socket(path)
        if mode is not None:
            os.fchmod(sock.fileno(), mode)  # before the file exists, so that there is no time without it
        sock.bind_path(path)
    except OSError:
        sock.close()
        raise
    return sock


def _remove_stale_socket(path: Path) -> None:
    """Delete the socket file of a process that has ended. Any other file, and a symbolic link, is kept."""
    if path.is_symlink() or not path.is_socket():
        return
    identity = _file_identity(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            _unlink(path, identity)
        except BlockingIOError:
            pass  # a process listens; its backlog is full


def remove_unix_socket(sock: socket.socket) -> None:
    """Delete the file of a Unix socket, unless another process has bound its own socket at the path since."""
    if isinstance(sock, _UnixSocket):
        _unlink(sock.path, sock.file_identity)


def _unlink(path: Path, identity: tuple[int, int] | None) -> None:
    if identity is not None and _file_identity(path) == identity:
        path.unlink(missing_ok=True)


def bound_address(sock: socket.socket, address: Address) -> Address:
    """The address of the listener, with the real host and port: the configured port may be 0."""
    if address.scheme == "unix":
        return address
    host, port = sock.getsockname()[:2]
    return address._replace(host=host, port=port)


def bound_url(sock: socket.socket, address: Address, path: str) -> str:
    bound = bound_address(sock, address)
    return f"{bound} (path {path})" if bound.scheme == "unix" else f"{bound}{path}"


def _bind_error_text(exc: OSError, address: Address, set_by: str) -> str:
    match exc.errno:
        case errno.EADDRINUSE if address.path and not Path(address.path).is_socket():
            return f"the file exists and is not a socket; move it, or set another address with {set_by}"
        case errno.EADDRINUSE:
            return f"address already in use; stop the other process, or set another address with {set_by}"
        case errno.EACCES | errno.EPERM:
            tcp_hint = "ports below 1024 need root or CAP_NET_BIND_SERVICE"
            return f"permission denied; {'the directory must be writable' if address.path else tcp_hint}"
        case errno.EADDRNOTAVAIL:
            return f"address not available: {address.host} is not an address of this machine"
        case errno.ENOENT:
            return f"no such directory: {os.path.dirname(address.path)}"  # noqa: PTH120  "" for none, not "."
        case _:
            return os_error_text(exc)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raises `ConfigError`, also if a file cannot be read in time."""
    try:
        return call_with_timeout(partial(_load_tls_context, certificate, key), READ_TIMEOUT_S)
    except TimeoutError as exc:
        raise _tls_error("server.tls", f"cannot read {certificate} and {key}: {exc}") from exc


def _load_tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        for file in (certificate, key):  # OpenSSL would wait for the other end of a pipe, and read a device without end
            read_small_file(file, MAX_PEM_BYTES)
        context.load_cert_chain(certificate, key, password=_reject_passphrase)
    except _EncryptedKeyError:
        raise _tls_error("server.tls.key", f"{key} is encrypted; remove the passphrase") from None
    except ssl.SSLError as exc:
        raise _explain_tls_error(certificate, key, exc.reason or "") from exc
    except OSError as exc:
        raise _tls_error("server.tls", f"cannot read {certificate} and {key}: {os_error_text(exc)}") from exc
    return context


def _tls_error(config_key: str, problem: str) -> ConfigError:
    return ConfigError(f"{config_key}: {problem}", key=config_key)


def _explain_tls_error(certificate: Path, key: Path, reason: str) -> ConfigError:
    """Name the invalid file, which OpenSSL's error does not."""
    if reason == "KEY_VALUES_MISMATCH":
        return _tls_error("server.tls.key", f"{key} is not the key of {certificate}")
    if not _contains_certificate(certificate):
        return _tls_error("server.tls.certificate", f"{certificate} contains no valid PEM certificate")
    if b"PRIVATE KEY-----" not in key.read_bytes() or not reason:
        return _tls_error("server.tls.key", f"{key} contains no valid PEM private key")
    problem = reason.lower().replace("_", " ")
    return _tls_error("server.tls", f"cannot use {certificate} and {key}: {problem}")


def _contains_certificate(file: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError:
        return False
    return True


class _EncryptedKeyError(Exception):
    pass


def _reject_passphrase() -> str:
    raise _EncryptedKeyError  # without a callback, OpenSSL prompts on the terminal
