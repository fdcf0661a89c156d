"""Inspects the addresses that the node would listen on and its control socket, and says what is exposed where."""

from __future__ import annotations

import errno
import os
import socket
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.agent.control import other_path_hint
from svcnode.cli.inspection.finding import Code, Finding, Level
from svcnode.cli.inspection.paths import can_create, existing_folder, exists
from svcnode.control.client import ControlClient
from svcnode.control.owner import owner_text, runs_with
from svcnode.core.errors import ListenError, SvcnodeError
from svcnode.core.url import MAX_SOCKET_BYTES
from svcnode.operator.auth import OperatorAuth, is_local_address
from svcnode.server.sockets import bind, overlapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli.inspection.subject import Subject
    from svcnode.config import Settings
    from svcnode.config.keys import KeyPath
    from svcnode.control.types import NodeDocument
    from svcnode.core.address import Address

OPEN_PATHS = ("/livez", "/readyz", "/openapi.json")  # beside the prefixes
CONNECT_TIMEOUT_S = 1.0


# ---- what is exposed


class Access(StrEnum):
    OPEN = "open"
    TOKEN = "token"  # noqa: S105  not a password
    REFUSED = "refused"  # a token is needed, and none is set
    FILE = "file"  # of the socket: who may connect is a matter of its permissions


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one address serves."""

    address: str
    is_local: bool  # only this machine can connect
    is_encrypted: bool
    surface: str
    paths: tuple[str, ...]
    access: Access


def exposures(settings: Settings) -> list[Exposure]:
    return [exposure for address in settings.addresses for exposure in _exposures_at(address, settings)] + [
        *_control_exposure(settings)
    ]


def _exposures_at(address: Address, settings: Settings) -> Iterator[Exposure]:
    def exposure(surface: str, paths: tuple[str, ...], access: Access) -> Exposure:
        is_encrypted = address.scheme == "https"
        return Exposure(
            address=str(address),
            is_local=is_local_address(address),
            is_encrypted=is_encrypted,
            surface=surface,
            paths=paths,
            access=access,
        )

    operator, public = settings.operator, settings.public
    if public is None or address not in public.listen:
        yield exposure("interface", (*(prefix or "/" for prefix in settings.prefixes), *OPEN_PATHS), Access.OPEN)
    if operator is not None and address in (operator.listen or settings.listen):
        from svcnode.operator import ROUTES

        auth = OperatorAuth(address, operator.token, trusts_loopback=operator.trusts_loopback)
        refused = Access.REFUSED if operator.token is None else Access.TOKEN
        paths = sorted({f"/{path.split('/')[1]}" for path in ROUTES})
        yield exposure("operator", tuple(paths), Access.OPEN if auth.is_open else refused)
    if address in settings.listen and any(service.push is not None for service in settings.services):
        yield exposure("push", ("/push",), Access.TOKEN)
    if public is not None and address in (public.listen or settings.listen):
        yield exposure("public", (public.path or "/",), Access.OPEN)


def _control_exposure(settings: Settings) -> Iterator[Exposure]:
    if settings.control is not None:
        yield Exposure(
            address=f"unix:{settings.control.listen}",
            is_local=True,
            is_encrypted=False,
            surface="control",
            paths=("/v1",),
            access=Access.FILE,
        )


def access(subject: Subject) -> Iterator[Finding]:
    """Tokens: where one is missing, and where one is not protected."""
    found = exposures(subject.settings)
    pages = [exposure for exposure in found if exposure.surface == "operator"]
    if pages and all(exposure.access is Access.REFUSED for exposure in pages):
        yield subject.finding(
            Code.OPERATOR_REFUSED,
            Level.WARNING,
            "nobody can open the operator pages: other machines can reach every address, and no token is set",
            "Set operator_token, or an operator_listen address such as 127.0.0.1:8421 in [server]",
            ("security", "operator_token"),
        )
    for exposure in found:
        if exposure.access is Access.TOKEN and not (exposure.is_local or exposure.is_encrypted):
            yield subject.finding(
                Code.TOKEN_UNENCRYPTED,
                Level.WARNING,
                f"{exposure.address} gets the token of the {exposure.surface} paths without TLS: anyone who can "
                "listen on the network can read it",
                "Set certificate and key in [server.tls], or listen on loopback behind a proxy with TLS",
                ("server", "listen"),
            )


# ---- addresses


def listen_addresses(subject: Subject) -> Iterator[Finding]:
    control = subject.settings.control
    is_running = control is not None and is_answered(control.listen) and _other_node(subject, control.listen) is None
    addresses = list(subject.settings.addresses)
    for index, address in enumerate(addresses):
        path = ("server", "listen") if address in subject.settings.listen else ("server", "operator_listen")
        if address.scheme == "unix":
            yield from _unix_address(subject, Path(address.path), path, is_running=is_running)
        elif (other := overlapping(address, addresses[:index])) is not None:
            what = f"{other} and {address} overlap, so the node cannot listen on both"
            yield subject.finding(Code.ADDRESS_UNAVAILABLE, Level.FAULT, what, "Remove one of them", path)
        elif address.port:
            yield from _tcp_address(subject, address, path, is_running=is_running)


def _tcp_address(subject: Subject, address: Address, path: KeyPath, *, is_running: bool) -> Iterator[Finding]:
    try:
        bind(address).close()
    except ListenError as exc:
        cause = exc.__cause__
        if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
            fix = "Set an address of this machine, and a port that this user may use"
            yield subject.finding(Code.ADDRESS_UNAVAILABLE, Level.FAULT, str(exc), fix, path)
        elif not is_running:
            yield _in_use(subject, str(address), f"ss -ltnp 'sport = :{address.port}'", path)


def _unix_address(subject: Subject, file: Path, path: KeyPath, *, is_running: bool) -> Iterator[Finding]:
    if is_answered(file):
        if not is_running:
            yield _in_use(subject, f"unix:{file}", f"ss -lxp src {file}", path)
    elif (
        (exists(file) and not file.is_socket())
        or existing_folder(file) != file.absolute().parent
        or not can_create(file)
    ):
        what = f"cannot listen on unix:{file}: another file is there, or its folder is missing or not writable"
        yield subject.finding(Code.ADDRESS_UNAVAILABLE, Level.FAULT, what, f"Create the folder of {file}", path)


def _in_use(subject: Subject, address: str, command: str, path: KeyPath) -> Finding:
    what = f"another process listens on {address}; it may be this node, without a control socket"
    fix = f"Find it with {command} and stop it, or set another address"
    return subject.finding(Code.ADDRESS_IN_USE, Level.FAULT, what, fix, path)


# ---- the control socket


def control_socket(subject: Subject) -> Iterator[Finding]:
    control = subject.settings.control
    if control is None:
        return
    file, path = control.listen, ("control", "listen")
    if len(os.fsencode(file)) > MAX_SOCKET_BYTES:
        what = f"the path of the control socket is longer than {MAX_SOCKET_BYTES} bytes: {file}"
        fix = 'Set a shorter one, such as "unix:/run/svcnode/control.sock"'
        yield subject.finding(Code.CONTROL_PATH_TOO_LONG, Level.FAULT, what, fix, path)
    elif is_answered(file) and (other := _other_node(subject, file)) is not None:
        what = f"a node with another configuration has the control socket {file}: {owner_text(other)}"
        hint = other_path_hint(subject.settings)
        key = ("node", "name") if control.is_default else path
        yield subject.finding(Code.CONTROL_IN_USE, Level.FAULT, what, f"{hint[0].upper()}{hint[1:]}", key)
    elif is_answered(file):
        what = f"a node answers on the control socket {file}"
        fix = "To let it use this configuration: svcnode reload"
        yield subject.finding(Code.NODE_RUNNING, Level.NOTE, what, fix, path)
    elif exists(file) and file.is_socket():
        what = f"{file} was left behind by a node that has ended"
        yield subject.finding(Code.CONTROL_STALE, Level.NOTE, what, "Nothing to do: serve replaces it", path)
    elif exists(file):
        what = f"{file} exists, and is not a socket"
        fix = f"Move the file, or set another path: mv {file} {file}.old"
        yield subject.finding(Code.CONTROL_NOT_A_SOCKET, Level.FAULT, what, fix, path)
    elif not can_create(file):
        # Without a path of its own, the node also works without the socket.
        level = Level.WARNING if control.is_default else Level.FAULT
        what = f"this user cannot create the control socket {file}"
        fix = "Set a path in a folder that the user of the node may write to"
        yield subject.finding(Code.CONTROL_UNWRITABLE, level, what, fix, path)
    if is_replaceable(file):
        what = f"other users can put a socket of their own in the place of {file}"
        fix = f"Take that permission away: chmod o-w {file.absolute().parent}"
        yield subject.finding(Code.CONTROL_REPLACEABLE, Level.FAULT, what, fix, path)


def _other_node(subject: Subject, file: Path) -> NodeDocument | None:
    """The node on the control socket, if it runs with another configuration than this one."""
    try:
        with ControlClient(file, timeout=CONNECT_TIMEOUT_S) as client:
            owner = client.node()
    except SvcnodeError:  # it does not say, or not to this user
        return None
    return None if runs_with(owner, subject.settings.file) else owner


def is_answered(file: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_TIMEOUT_S)
        try:
            client.connect(os.fspath(file))
        except TimeoutError:
            return True  # its backlog is full
        except OSError:
            return False
    return True


def is_replaceable(file: Path) -> bool:
    """Whether other users can replace the file. In a folder with the sticky bit, such as /tmp, they cannot."""
    mode = existing_folder(file).stat().st_mode
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
