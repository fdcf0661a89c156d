from __future__ import annotations

import errno
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from svcnode.core.address import Address
from svcnode.core.errors import ConfigError, ListenError
from svcnode.server.sockets import bind, bound_url, remove_unix_socket, tls_context
from tests.support.certificates import make_certificate
from tests.support.processes import has_ipv6
from tests.support.servers.base import free_port

if TYPE_CHECKING:
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


# ---- TCP


def test_port_0_binds_a_free_port() -> None:
    with bind(tcp()) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        assert bound_url(sock, tcp(), "/svc/node") == f"http://127.0.0.1:{port}/svc/node"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_url_of_an_ipv6_address_has_brackets() -> None:
    with bind(tcp(host="::1")) as sock:
        assert sock.family == socket.AF_INET6
        assert bound_url(sock, tcp(host="::1"), "/x") == f"http://[::1]:{sock.getsockname()[1]}/x"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_wildcard_leaves_ipv4_to_another_listener() -> None:
    with bind(tcp(free_port(), "::")) as six:
        six.listen()
        with bind(tcp(six.getsockname()[1], "0.0.0.0")) as four:
            four.listen()


def test_a_host_name_is_resolved() -> None:
    with bind(tcp(host="localhost")) as sock:
        assert sock.getsockname()[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize(("set_by", "named"), [(None, "--listen"), ("server.listen", "server.listen")])
def test_an_address_in_use_is_an_error_that_names_the_address_and_its_setting(set_by: str | None, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert bind_errno(tcp(port)) == errno.EADDRINUSE
        with pytest.raises(ListenError) as raised:
            bind(tcp(port), set_by)
    assert f"http://127.0.0.1:{port}" in str(raised.value)
    assert named in str(raised.value)


def test_an_address_of_another_machine_is_an_error() -> None:
    assert bind_errno(tcp(80, "192.0.2.1")) == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "ü" * 70, "a\0b", "no..name", "\udcff"])
def test_an_invalid_host_name_is_an_error(host: str) -> None:
    with pytest.raises(ListenError):
        bind(tcp(80, host))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_missing_privilege_is_an_error(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(code, "denied")

    monkeypatch.setattr(socket.socket, "bind", fail)
    assert bind_errno(tcp(80)) == code


# ---- Unix sockets


def test_a_unix_socket_is_created_and_removed(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as sock:
        assert (tmp_path / "a.sock").is_socket()
        assert bound_url(sock, address, "/svc/node") == f"unix:{tmp_path}/a.sock (path /svc/node)"
    remove_unix_socket(sock)
    assert not (tmp_path / "a.sock").exists()
    remove_unix_socket(sock)  # already removed
    with bind(tcp()) as other:
        remove_unix_socket(other)


def test_a_path_that_another_process_has_taken_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
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


def test_a_link_to_the_socket_of_an_ended_process_is_kept(tmp_path: Path) -> None:
    bind(unix(tmp_path / "a.sock")).close()
    (tmp_path / "link.sock").symlink_to(tmp_path / "a.sock")
    assert bind_errno(unix(tmp_path / "link.sock")) == errno.EADDRINUSE
    assert (tmp_path / "link.sock").is_symlink()


def test_a_socket_with_a_full_backlog_is_kept_without_waiting(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as slow, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        slow.listen(0)
        first.connect(address.path)
        second.setblocking(False)
        assert second.connect_ex(address.path) == errno.EAGAIN
        assert bind_errno(address) == errno.EADDRINUSE


def test_the_socket_of_an_ended_process_is_replaced(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    bind(address).close()
    assert (tmp_path / "a.sock").is_socket()
    with bind(address) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a.sock"))


def test_a_socket_in_use_is_kept(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as other:
        other.listen()
        assert bind_errno(address) == errno.EADDRINUSE
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a.sock"))


def test_a_file_that_is_not_a_socket_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("content")
    assert bind_errno(unix(tmp_path / "notes")) == errno.EADDRINUSE
    assert (tmp_path / "notes").read_text() == "content"


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    assert bind_errno(unix(tmp_path / "no" / "a.sock")) == errno.ENOENT


def test_a_path_that_is_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ListenError):
        bind(unix(tmp_path / ("x" * 108)))


# ---- TLS


def test_a_certificate_and_its_key_make_a_context(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    context = tls_context(made.certificate, made.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE  # no client certificates


def invalid_setting(certificate: Path, key: Path) -> str | None:
    """The configuration key that the error names. The error text also has the path of the file."""
    with pytest.raises(ConfigError) as raised:
        tls_context(certificate, key)
    assert str(key if raised.value.key == "server.tls.key" else certificate) in str(raised.value)
    return raised.value.key


def test_the_key_of_another_certificate_is_an_error(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "other")
    assert invalid_setting(one.certificate, other.key) == "server.tls.key"


@pytest.mark.parametrize("text", ["hello", "", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"])
def test_an_invalid_certificate_file_is_an_error(text: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.certificate.write_text(text)
    assert invalid_setting(made.certificate, made.key) == "server.tls.certificate"


@pytest.mark.parametrize("text", ["hello", "", "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n"])
def test_an_invalid_key_file_is_an_error(text: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.key.write_text(text)
    assert invalid_setting(made.certificate, made.key) == "server.tls.key"


def test_a_missing_certificate_file_is_an_error(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.certificate.unlink()
    assert invalid_setting(made.certificate, made.key) == "server.tls"


def test_an_encrypted_key_is_an_error_and_does_not_prompt(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, passphrase=b"secret")
    assert invalid_setting(made.certificate, made.key) == "server.tls.key"
