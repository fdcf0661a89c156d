"""Probe URLs. Passwords and keys in a URL are registered as secrets and never shown."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from svcnode.core.errors import ProbeError
from svcnode.core.redaction import MASK, redacted, register_likely_keys, register_secret

UrlPart = Literal["url", "scheme", "credentials", "host", "port", "path", "query"]

_URL_PATTERN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_AUTHORITY_PATTERN = re.compile(
    r"""//
    (?:(?P<username>[^:@/?\#]*)(?::(?P<password>[^/?\#]*))?@)?
    (?P<host>\[[^\]]*\]|[^:/?\#\[]*)
    (?::(?P<port>[^/?\#]*))?
    (?P<path>/[^?\#]*)?
    (?:\?(?P<query>[^\#]*))?
    (?:\#.*)?""",
    re.DOTALL | re.VERBOSE,
)
_SEVERAL_PORTS = re.compile("[0-9]*,")
_PLAIN_HOST = re.compile(r"(?:[A-Za-z0-9_:-]{1,63}(?:\.|\Z))+")


class UrlError(ProbeError):
    """A URL that a probe cannot use, and the part of it that is wrong or missing."""

    def __init__(self, part: UrlPart, text: str) -> None:
        self.part = part
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Url:
    """Either `scheme://username:password@host:port/path?query`, or `scheme:path`.

    User name and password are percent-decoded; path and query are not.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    query: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, *, register_secrets: bool = True) -> Url:
        """`register_secrets` is False for a URL that a server sent, such as a redirect."""
        if any(char < " " or char == "\x7f" or "\ud800" <= char < "\ue000" for char in text):
            raise UrlError("url", "invalid URL: it must be UTF-8 text without control characters")
        found = _URL_PATTERN.fullmatch(text)
        if found is None:
            raise UrlError("scheme", "invalid URL: it must begin with a scheme, such as http://127.0.0.1:8080/health")
        scheme, rest = found["scheme"].lower(), found["rest"]
        if not rest.startswith("//"):
            return cls(scheme=scheme, path=rest)
        parts = _AUTHORITY_PATTERN.fullmatch(rest)
        if parts is None:
            raise UrlError("url", f"invalid URL: expected {scheme}://host:port/path; percent-encode special characters")
        if "," in parts["host"] or _SEVERAL_PORTS.match(parts["port"] or ""):
            raise UrlError("host", "several hosts in the URL; a URL has one, so add a service for each of them")
        if register_secrets:
            register_secret(unquote(parts["password"] or ""))
            if parts["host"]:  # without a host, the path is a file
                key_candidates = (parts["username"], parts["path"], parts["query"])
                register_likely_keys(unquote("/".join(part or "" for part in key_candidates)))
        return cls(
            scheme=scheme,
            host=_host(parts["host"]),
            port=_port(parts["port"]),
            path=parts["path"] or "",
            query=parts["query"] or "",
            username=unquote(parts["username"] or ""),
            password=unquote(parts["password"] or ""),
        )

    def __str__(self) -> str:
        """Without secrets: the password, and the query, which often contains a key."""
        if not self.host:
            return redacted(f"{self.scheme}:{self.path}")
        user = f"{self.username}{f':{MASK}' if self.password else ''}@" if self.username or self.password else ""
        query = f"?{MASK}" if self.query else ""
        return redacted(f"{self.scheme}://{user}{self.host_port}{self.path}{query}")

    def __repr__(self) -> str:
        return f"<Url {self}>"

    @property
    def host_port(self) -> str:
        """host:port, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """The path and the query, as in a request line."""
        return (self.path or "/") + (f"?{self.query}" if self.query else "")

    @property
    def basic_authorization(self) -> str:
        """The value of an Authorization header; empty without user name and password."""
        if not (self.username or self.password):
            return ""
        import base64

        token = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        register_secret(token)
        return f"Basic {token}"

    @property
    def file_path(self) -> str:
        """The path of a URL such as `file:/run/app.pid` or `file:///run/app.pid`."""
        if self.host:
            raise UrlError("host", f"a {self.scheme} URL has no host; write {self.scheme}:/{self.host}{self.path}")
        path = unquote(self.path)
        if self.query or "\0" in path:
            raise UrlError("path", "a path has no query and no null characters; write %3F for a question mark")
        return path

    def require_host(self) -> str:
        if not self.host:
            raise UrlError("host", f"the URL has no host; write {self.scheme}://host:port")
        if (ascii_host := _to_ascii(self.host)) != self.host:
            hint = f'; write "{ascii_host}"' if ascii_host else ""
            raise UrlError("host", f"invalid host name in the URL{hint}")
        return self.host

    def require_port(self) -> int:
        if self.port is None:
            raise UrlError("port", f"the URL has no port; write {self.scheme}://{self.require_host()}:port")
        return self.port

    def reject_path(self) -> None:
        if self.path not in ("", "/") or self.query:
            raise UrlError(
                "path", f"{self.scheme} URLs have no path and no query; write {self.scheme}://{self.host_port}"
            )

    def reject_query(self) -> None:
        if self.query:
            raise UrlError(
                "query", f"{self.scheme} URLs have no query; remove the question mark and everything after it"
            )

    def reject_credentials(self) -> None:
        if self.username or self.password:
            raise UrlError("credentials", f"{self.scheme} URLs have no user name and no password")


def _host(text: str) -> str:
    if not text.startswith("["):
        return unquote(text)
    try:
        return str(ipaddress.IPv6Address(text[1:-1]))
    except ValueError:
        raise UrlError("host", f"invalid IPv6 address: {text}") from None


def is_valid_hostname(text: str) -> bool:
    return _to_ascii(text) == text


def _to_ascii(host: str) -> str | None:
    if _PLAIN_HOST.fullmatch(host):  # the common case; the idna codec is loaded only for other names
        return host
    try:
        return None if any(char <= " " for char in host) else host.encode("idna").decode()
    except UnicodeError:
        return None


def _port(text: str | None) -> int | None:
    if not text:
        return None
    if not (re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) <= 65535):
        # The text is not shown: it may be part of a password.
        raise UrlError(
            "port", "invalid port: it must be a number from 1 to 65535; percent-encode @ : / ? and # in a password"
        )
    return int(text)
