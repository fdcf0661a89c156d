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

if TYPE_CHECKING:
    from pathlib import Path


def tcp(port: int = 0, host: str = "127.0.0.1") -> Address:
    return Address(scheme="http", host=host, port=port)


def unix(path: Path) -> Address:
    return Address(scheme="unix", path=str(path))


def refusal(address: Address) -> str:
    with pytest.raises(ListenError) as refused:
        bind(address)
    return str(refused.value)


# ---- TCP


def test_a_free_port_is_taken_and_told() -> None:
    with bind(tcp()) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        assert bound_url(sock, tcp(), "/svc/node") == f"http://127.0.0.1:{port}/svc/node"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_is_told_in_brackets() -> None:
    with bind(tcp(host="::1")) as sock:
        assert sock.family == socket.AF_INET6
        assert bound_url(sock, tcp(host="::1"), "/x") == f"http://[::1]:{sock.getsockname()[1]}/x"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_wildcard_leaves_ipv4_to_another_listener() -> None:
    with bind(tcp(host="::")) as six:
        six.listen()
        with bind(tcp(six.getsockname()[1], "0.0.0.0")) as four:
            four.listen()


def test_a_name_is_looked_up() -> None:
    with bind(tcp(host="localhost")) as sock:
        assert sock.getsockname()[0] in ("127.0.0.1", "::1")


def test_an_address_in_use_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refusal(tcp(port)) == (
            f"cannot listen on http://127.0.0.1:{port}: "
            "something listens there already; stop it, or choose another place with --listen"
        )


def test_the_refusal_names_what_is_to_be_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ListenError) as refused:
        bind(tcp(other.getsockname()[1]), "listen in [server]")
    assert str(refused.value).endswith("choose another place with listen in [server]")


def test_an_address_of_another_machine_is_refused() -> None:
    assert refusal(tcp(80, "192.0.2.1")) == (
        "cannot listen on http://192.0.2.1:80: this machine has no address 192.0.2.1"
    )


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "ü" * 70, "a\0b", "no..name", "\udcff"])
def test_what_cannot_be_a_host_name_is_refused(host: str) -> None:
    assert refusal(tcp(80, host)).startswith("cannot listen on http://")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_missing_privilege_is_told(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(code, "no")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert "permission denied; ports below 1024 need a privilege" in refusal(tcp(80))


# ---- Unix sockets


def test_a_unix_socket_is_made_and_taken_away(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as sock:
        assert (tmp_path / "a.sock").is_socket()
        assert bound_url(sock, address, "/svc/node") == f"unix:{tmp_path}/a.sock (path /svc/node)"
    remove_unix_socket(address)
    assert not (tmp_path / "a.sock").exists()
    remove_unix_socket(address)  # somebody else may have been quicker
    remove_unix_socket(tcp())


def test_a_socket_whose_listener_is_slow_to_accept_is_left_alone_and_not_waited_for(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as slow, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        slow.listen(0)
        first.connect(address.path)
        second.setblocking(False)
        assert second.connect_ex(address.path) == errno.EAGAIN
        assert "something listens there already" in refusal(address)


def test_a_socket_that_was_left_over_is_replaced(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    bind(address).close()
    assert (tmp_path / "a.sock").is_socket()
    with bind(address) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a.sock"))


def test_a_socket_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    address = unix(tmp_path / "a.sock")
    with bind(address) as other:
        other.listen()
        assert "something listens there already" in refusal(address)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a.sock"))


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    assert "a file that is no socket stands there" in refusal(unix(tmp_path / "notes"))
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert refusal(unix(tmp_path / "no" / "a.sock")).endswith(f"there is no folder {tmp_path}/no")


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    assert refusal(unix(tmp_path / ("x" * 108))).endswith("AF_UNIX path too long")


# ---- TLS


def test_a_certificate_and_its_key_make_a_context(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    context = tls_context(made.certificate, made.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE  # of the client, who stays unknown


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "other")
    with pytest.raises(ConfigError) as refused:
        tls_context(one.certificate, other.key)
    assert str(refused.value) == (
        f"server.tls.key: {other.key} is not the key of {one.certificate}, but of another certificate"
    )


@pytest.mark.parametrize("text", ["hello", "", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_no_certificate_is_refused(text: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.certificate.write_text(text)
    with pytest.raises(ConfigError) as refused:
        tls_context(made.certificate, made.key)
    assert str(refused.value) == f"server.tls.certificate: {made.certificate} holds no certificate in PEM form"


@pytest.mark.parametrize("text", ["hello", "", "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n"])
def test_a_file_that_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.key.write_text(text)
    with pytest.raises(ConfigError) as refused:
        tls_context(made.certificate, made.key)
    said = f"server.tls.key: {made.key} holds no private key in PEM form, or a damaged one"
    assert str(refused.value) == said


def test_a_certificate_that_is_gone_is_refused(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    made.certificate.unlink()
    with pytest.raises(ConfigError, match="no such file or directory"):
        tls_context(made.certificate, made.key)


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_passphrase(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, passphrase=b"secret")
    with pytest.raises(ConfigError) as refused:
        tls_context(made.certificate, made.key)
    assert str(refused.value) == f"server.tls.key: {made.key} is encrypted; give the key without a passphrase"
