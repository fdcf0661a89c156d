from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from typing import TYPE_CHECKING, cast

import pytest

from svcnode.core.address import Address
from svcnode.core.errors import ConfigError, ListenError
from svcnode.server.sockets import bind, bind_private, bound_url, peer_user, remove_unix_socket, tls_context
from tests.support.certificates import Certificate, make_certificate
from tests.support.ports import free_port
from tests.support.processes import has_ipv6

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def tcp(port: int = 0, host: str = "127.0.0.1") -> Address:
    return Address(scheme="http", host=host, port=port)


def unix(path: Path) -> Address:
    return Address(scheme="unix", path=str(path))


def bind_errno(address: Address) -> int | None:
    """The error code of the operating system; None if the address was rejected before."""
    with pytest.raises(ListenError) as raised:
        bind(address)
    return raised.value.__cause__.errno if isinstance(raised.value.__cause__, OSError) else None


def test_port_0_binds_a_free_port() -> None:
    with bind(tcp()) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        assert bound_url(sock, tcp(), "/svc/node") == f"http://127.0.0.1:{port}/svc/node"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_wildcard_leaves_ipv4_to_another_listener() -> None:
    with bind(tcp(free_port(), "::")) as six:
        six.listen()
        with bind(tcp(six.getsockname()[1], "0.0.0.0")) as four:
            four.listen()


@pytest.mark.parametrize(("set_by", "named"), [(None, "--listen"), ("server.listen", "server.listen")])
def test_an_address_in_use_is_an_error_that_names_the_address_and_its_setting(set_by: str | None, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert bind_errno(tcp(port)) == errno.EADDRINUSE
        with pytest.raises(ListenError) as raised:
            bind(tcp(port), set_by)
    assert f"http://127.0.0.1:{port}" in str(raised.value)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        (tcp(80, "192.0.2.1"), "192.0.2.1 is not an address of this machine"),
        (tcp(80, "ü" * 70), "invalid host name"),
        (tcp(80, "no..name"), None),
        (Address(scheme="unix", path="/no/a.sock"), "no such directory: /no"),
        (Address(scheme="unix", path="/tmp/" + "x" * 108), None),
    ],
)
def test_an_address_that_cannot_be_bound_is_an_error_that_says_why(address: Address, problem: str | None) -> None:
    with pytest.raises(ListenError, match=problem):
        bind(address)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_missing_privilege_is_an_error(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(code, "denied")

    monkeypatch.setattr(socket.socket, "bind", fail)
    assert bind_errno(tcp(80)) == code


def test_a_unix_socket_is_created_and_removed_unless_another_process_has_taken_over_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with bind(unix(path)) as sock:
        assert path.is_socket()
        assert bound_url(sock, unix(path), "/svc/node") == f"unix:{path} (path /svc/node)"
    remove_unix_socket(sock)
    assert not path.exists()
    remove_unix_socket(sock)  # already removed
    with bind(tcp()) as other:
        remove_unix_socket(other)
    with bind(unix(path)) as old:
        path.unlink()
        with bind(unix(path)) as new:
            new.listen()
            remove_unix_socket(old)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            path.unlink()
            path.write_text("entries")
            remove_unix_socket(new)
            assert path.read_text() == "entries"


def test_a_link_to_a_socket_and_one_with_a_full_backlog_are_kept_without_waiting(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    bind(address).close()
    (tmp_path / "link.sock").symlink_to(tmp_path / "a.sock")
    assert bind_errno(unix(tmp_path / "link.sock")) == errno.EADDRINUSE
    assert (tmp_path / "link.sock").is_symlink()
    with bind(address) as slow, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        slow.listen(0)
        first.connect(address.path)
        second.setblocking(False)
        assert second.connect_ex(address.path) == errno.EAGAIN
        assert bind_errno(address) == errno.EADDRINUSE


def test_the_socket_of_an_ended_process_is_replaced_and_another_file_kept(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    bind(address).close()
    assert (tmp_path / "a.sock").is_socket()
    with bind(address) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a.sock"))
    (tmp_path / "notes").write_text("content")
    assert bind_errno(unix(tmp_path / "notes")) == errno.EADDRINUSE
    assert (tmp_path / "notes").read_text() == "content"


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


def test_a_certificate_and_its_key_make_a_context(made: Certificate) -> None:
    context = tls_context(made.certificate, made.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE  # no client certificates


def invalid_setting(certificate: Path, key: Path) -> str | None:
    """The configuration key that the error names. The error text also has the path of the file."""
    with pytest.raises(ConfigError) as raised:
        tls_context(certificate, key)
    assert str(key if raised.value.key == "server.tls.key" else certificate) in str(raised.value)
    return raised.value.key


@pytest.mark.parametrize(
    ("certificate", "key", "setting"),
    [
        ("hello", None, "server.tls.certificate"),
        ("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n", None, "server.tls.certificate"),
        (None, "", "server.tls.key"),
        (None, "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n", "server.tls.key"),
    ],
)
def test_an_error_names_the_file_that_is_invalid(
    made: Certificate, certificate: str | None, key: str | None, setting: str
) -> None:
    if certificate is not None:
        made.certificate.write_text(certificate)
    if key is not None:
        made.key.write_text(key)
    assert invalid_setting(made.certificate, made.key) == setting


def test_another_an_encrypted_or_a_missing_file_is_an_error_and_does_not_prompt(
    made: Certificate, tmp_path: Path
) -> None:
    encrypted = make_certificate(tmp_path, "encrypted", passphrase=b"secret")
    assert invalid_setting(made.certificate, make_certificate(tmp_path, "other").key) == "server.tls.key"
    assert invalid_setting(encrypted.certificate, encrypted.key) == "server.tls.key"
    made.certificate.unlink()
    assert invalid_setting(made.certificate, made.key) == "server.tls"


@pytest.fixture(params=[0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    old = os.umask(request.param)
    yield request.param
    os.umask(old)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_private_socket_is_for_its_user_only(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new" / "c.sock"
    with bind_private(path) as sock:
        sock.listen()
        with pytest.raises(OSError, match="in use"):
            bind_private(path)
        assert mode_of(path) == 0o600
        assert mode_of(path.parent) == 0o700
        remove_unix_socket(sock)
    assert not path.exists()


def test_the_socket_of_a_group_is_for_its_members_too(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "c.sock"
    with bind_private(path, os.getegid()):
        assert (mode_of(path), path.stat().st_gid) == (0o660, os.getegid())


def test_a_group_that_cannot_be_set_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chown(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(PermissionError):
        bind_private(tmp_path / "c.sock", 5)
    assert not (tmp_path / "c.sock").exists()


class PeerSocket:
    """A socket whose peer has these credentials."""

    def __init__(self, user_id: int, group_id: int, *groups: int) -> None:
        self._credentials = struct.pack("3i", 1, user_id, group_id)
        self._groups = struct.pack(f"{len(groups)}I", *groups)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert size <= 1024, "Python refuses more"
        data = self._credentials if option == socket.SO_PEERCRED else self._groups
        if len(data) > size:
            raise OSError(errno.ERANGE, "Numerical result out of range")
        return data


@pytest.mark.parametrize(
    ("peer", "group_id", "is_allowed"),
    [
        (PeerSocket(0, 0), None, True),
        (PeerSocket(os.geteuid(), 7), None, True),
        (PeerSocket(65_500, os.getegid(), os.getegid()), None, False),
        (PeerSocket(65_500, 7), 7, True),
        (PeerSocket(65_500, 8, 6, 7), 7, True),
        (PeerSocket(65_500, 8, 6, 9), 7, False),
        (PeerSocket(65_500, 8, *range(300)), 7, False),  # more groups than can be read
    ],
)
def test_a_peer_is_allowed_by_its_user_or_its_groups(peer: PeerSocket, group_id: int | None, is_allowed: bool) -> None:
    assert (peer_user(cast("socket.socket", peer), group_id) is not None) == is_allowed


def test_a_peer_without_a_name_on_this_machine_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65_500)
    users = [peer_user(cast("socket.socket", PeerSocket(user_id, 7))) for user_id in (0, 65_500)]
    assert users == ["root", "65500"]
