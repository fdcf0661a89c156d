"""The address of a node from the configuration; the address and the token of its operator surface."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from svcnode.cli._args import read_secret
from svcnode.config import find_node_file
from svcnode.config.reading import read_table
from svcnode.config.sources import Source
from svcnode.config.tables import SecurityTable, ServerTable
from svcnode.core.address import UNIX_PREFIX, Address, parse_address, parse_node_address
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text
from svcnode.operator.auth import is_local_address
from svcnode.probes.interpolate import interpolate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

TOKEN_VARIABLE = "SVCNODE_SECURITY_OPERATOR_TOKEN"  # noqa: S105  a name
_END_OF_CERTIFICATE = "-----END CERTIFICATE-----"
_WILDCARD_TO_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  not bound, only compared


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorUrl:
    origin: str  # with the path prefix of a reverse proxy, if any
    display: str
    socket_path: str | None = None
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext = field(default_factory=lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), repr=False)


def operator_url_from(arguments: argparse.Namespace) -> OperatorUrl:
    token = None if arguments.token is None else _check_token("--token", read_secret("--token", arguments.token))
    if arguments.url is None:
        return _from_config(arguments, token)
    token = token or _token_from_environment()
    if arguments.url.startswith(UNIX_PREFIX):
        return _from_address(parse_address(arguments.url, has_tls=False), token)
    address = parse_node_address(arguments.url)
    authorization = _bearer(token) or address.url.basic_authorization
    url = OperatorUrl(origin=f"{address.origin}{address.url.path}", display=str(address), authorization=authorization)
    return replace(url, tls=_tls_context("--ca", arguments.ca)) if address.uses_tls else url


# ---- from the configuration


def _from_config(arguments: argparse.Namespace, token: str | None) -> OperatorUrl:
    """Reads only the keys needed here: secrets and drivers of services may be missing on this machine, and an error
    elsewhere in the file may be the reason to run `svcnode explain`.
    """
    try:
        source = Source(find_node_file(arguments.config), os.environ, ())
        server = _server(source, "listen", "operator", "operator_listen", "tls")
        security = read_table(
            SecurityTable, source.data.get("security", {}), ("security",), source, ("trust_loopback",)
        )
        source.raise_errors()
    except ConfigError as exc:
        text = f"{exc}; or give the URL of the node"
        raise ConfigError(text, key=exc.key, file=exc.file, line=exc.line) from exc
    address = _operator_address(server, source)
    trusts_loopback = "operator_token" not in security if security.trust_loopback is None else security.trust_loopback
    if token is None and "operator_token" in security and not (trusts_loopback and is_local_address(address)):
        token = _token_from_config(security.given["operator_token"], source)
    url = _from_address(address, token)
    if address.scheme == "https" and server.tls is not None:
        tls = _tls_context("--ca", arguments.ca) if arguments.ca else _pinned_tls_context(server.tls.certificate)
        return replace(url, tls=tls)
    return url


def _server(source: Source, *keys: str) -> ServerTable:
    return read_table(ServerTable, source.data.get("server", {}), ("server",), source, keys)


def _operator_address(server: ServerTable, source: Source) -> Address:
    """The operator address; of several, one on this machine, since the others may not be reachable from here."""
    with source.error_context("server", "operator"):
        if not server.operator:
            raise InvalidValueError("is false, so this node has no operator surface to ask")
    return _local_address(server, source, "listen" if server.operator_listen is None else "operator_listen")


def _local_address(server: ServerTable, source: Source, key: Literal["listen", "operator_listen"]) -> Address:
    with source.error_context("server", key):
        addresses = [parse_address(text, has_tls="tls" in server) for text in getattr(server, key)]
        address = next(filter(is_local_address, addresses), addresses[0])
        if address.scheme != "unix" and not address.port:
            raise InvalidValueError("port 0 is a random port; give the address that the node really listens at")
    return address


def configured_node(file: Path | None, ca: str | None) -> tuple[str, str, str | ssl.SSLContext | None]:
    """The URL of the node that the configuration describes, its prefix, and what to trust: `ca`, or its certificate."""
    source = Source(find_node_file(file), os.environ, ())
    server = _server(source, "listen", "prefix", "tls")
    source.raise_errors()
    address = _reachable(_local_address(server, source, "listen"))
    if ca is None and address.scheme == "https" and server.tls is not None:
        return str(address), server.prefix[0], _pinned_tls_context(server.tls.certificate)
    return str(address), server.prefix[0], ca


def node_address(text: str) -> Address:
    """The address of a node that the command line names by its URL."""
    if text.startswith(UNIX_PREFIX):
        return parse_address(text, has_tls=False)
    address = parse_node_address(text)
    default_port = 443 if address.uses_tls else 80
    return Address(
        scheme="https" if address.uses_tls else "http", host=address.url.host, port=address.url.port or default_port
    )


def configured_address(file: Path | None) -> Address:
    """The address of the node that the configuration describes."""
    source = Source(find_node_file(file), os.environ, ())
    server = _server(source, "listen", "tls")
    source.raise_errors()
    return _reachable(_local_address(server, source, "listen"))


def _reachable(address: Address) -> Address:
    if address.scheme == "unix":
        return address
    host = _WILDCARD_TO_LOOPBACK.get(address.host, address.host)
    return Address(scheme=address.scheme, host=host, port=address.port)


def _token_from_config(value: object, source: Source) -> str | None:
    with source.error_context("security", "operator_token"):
        try:
            return _check_token("operator_token", str(interpolate(value, os.environ)))
        except InvalidValueError as exc:  # this user may not read the file, or does not have the variable
            raise InvalidValueError(f"{exc}; or give the token with --token") from exc


def _from_address(address: Address, token: str | None) -> OperatorUrl:
    if address.scheme == "unix":
        origin, path = "http://localhost", address.path
    else:
        origin, path = str(_reachable(address)), None
    return OperatorUrl(
        origin=origin, display=str(address) if path else origin, socket_path=path, authorization=_bearer(token)
    )


# ---- tokens


def _token_from_environment() -> str | None:
    value = os.environ.get(TOKEN_VARIABLE)
    return _check_token(TOKEN_VARIABLE, str(interpolate(value, os.environ))) if value else None


def _check_token(name: str, token: str) -> str:
    register_secret(token)
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidValueError(
            f"{name}: invalid operator token: must be printable ASCII without spaces, and not empty"
        )
    return token


def _bearer(token: str | None) -> str:
    return f"Bearer {token}" if token else ""


# ---- TLS


def _pinned_tls_context(certificate: Path) -> ssl.SSLContext:
    """Trusts only the node's own certificate, with any host name."""
    context = _tls_context("server.tls.certificate", str(certificate), _load_first_certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def _load_first_certificate(file: str | None) -> ssl.SSLContext:
    """Leaves out the authorities that follow in the file, because they also issue certificates for others."""
    first, end, _ = Path(str(file)).read_text(encoding="utf-8", errors="replace").partition(_END_OF_CERTIFICATE)
    if not end:
        raise ValueError("no certificate")
    return ssl.create_default_context(cadata=first + end)


def _load_authorities(file: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def _tls_context(
    name: str, file: str | None, load: Callable[[str | None], ssl.SSLContext] = _load_authorities
) -> ssl.SSLContext:
    try:
        return load(file)
    except (OSError, ValueError) as exc:
        reason = "not a PEM file"
        if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError):
            reason = os_error_text(exc)
        hint = "" if name == "--ca" else "; or name the certificate to trust with --ca"
        raise InvalidValueError(f"{name}: cannot use {file}: {reason}{hint}") from exc
