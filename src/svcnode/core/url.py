"""URLs. Passwords and keys in the URL of a probe are registered as secrets and never shown."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import unquote

from svcnode.core.errors import InvalidValueError, ProbeError
from svcnode.core.redaction import MASK, redacted, register_likely_keys, register_secret
from svcnode.core.text import has_control_chars

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
# A Unix socket, and the path of a request after a colon: ///run/docker.sock:/containers/ledger/json
_UNIX_PATTERN = re.compile(
    r"(?!//[^/])(?://)?(?P<socket>/[^:?#]*)(?::(?P<path>/[^?#]*))?(?:\?(?P<query>[^\#]*))?(?:\#.*)?", re.DOTALL
)
_UNIX_SUFFIX = "+unix"
MAX_SOCKET_BYTES = 107  # of a path in Linux's sockaddr_un, without the null at its end
_SEVERAL_PORTS = re.compile("[0-9]*,")
_NOT_IN_HOST = {*map(chr, range(0x21)), *"/?#@\\[]"}
# From 1 to 65535.
_PORT_PATTERN = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]|0[0-9]{1,4})"
# Of a link. The characters that no URL has would end the link too early in a chat or a terminal.
MAX_LINK_CHARS = 500
NOT_IN_LINK = r"""\s"<>\\^`{|}"""
_PLAIN_HOST = re.compile(r"(?:[A-Za-z0-9_:-]{1,63}(?:\.|\Z))+")


NO_PATH = "/?"
_SOCKET = r"(//)?/[^:?#]*[^:?#/]"


class UrlForm(NamedTuple):
    """The parts that the URLs of a kind have. The patterns are regular expressions; the JSON Schema is made of them."""

    host: Literal["required", "optional", "none", "any"] = "required"
    needs_port: bool = False
    has_credentials: bool = True
    path: str = "(/[^?#]*)?"
    query: str = ".*"  # "": none
    path_alone: str = ""  # if the URL is the whole probe; "": as `path`
    whole: str = ""  # of everything after the scheme and its colon, instead of the parts

    def pattern(self, *, is_alone: bool = False) -> str:
        """Of what follows the scheme and its colon."""
        path = (is_alone and self.path_alone) or self.path
        if self.host == "any":
            return self.whole or ".*"
        if self.host == "none":
            return f"(?!//[^/]){path}"
        credentials = "([^/?#]*@)?" if self.has_credentials else ""
        host = r"(\[[0-9A-Fa-f:.]+(%[^\]]*)?\]|[^:/?#\[\]@,\s]+)" + ("?" if self.host == "optional" else "")
        port = f"(:{_PORT_PATTERN})" if self.needs_port else f"(:({_PORT_PATTERN})?)?"
        return rf"//{credentials}{host}{port}{path}(\?{self.query})?(#.*)?"


# Of a socket, and of a socket that a request is sent to.
SOCKET_FORM = UrlForm(host="none", path=_SOCKET)
HTTP_SOCKET_FORM = UrlForm(host="none", path=rf"{_SOCKET}(:/[^?#]*)?(\?[^#]*)?(#.*)?")


class UrlError(ProbeError):
    """A URL that a probe cannot use, and the part of it that is wrong or missing."""

    def __init__(self, part: UrlPart, text: str) -> None:
        self.part = part
        super().__init__(text)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Url:
    """Either `scheme://username:password@host:port/path?query`, or `scheme:path`, or, if the scheme ends with `+unix`,
    `scheme:///socket:/path?query`.

    User name, password and socket are percent-decoded; path and query are not.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    query: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    socket: str = ""  # the path of a Unix socket, instead of host and port

    @classmethod
    def parse(cls, text: str, *, register_secrets: bool = True) -> Url:
        """`register_secrets` is False for a URL that a server sent, such as a redirect."""
        if has_control_chars(text):
            raise UrlError("url", "invalid URL: it must be UTF-8 text without control characters")
        found = _URL_PATTERN.fullmatch(text)
        if found is None:
            raise UrlError("scheme", "invalid URL: it must begin with a scheme, such as http://127.0.0.1:8080/health")
        scheme, rest = found["scheme"].lower(), found["rest"]
        if scheme.endswith(_UNIX_SUFFIX):
            return cls._parse_unix(scheme, rest)
        if not rest.startswith("//"):
            return cls(scheme=scheme, path=rest)
        found = _AUTHORITY_PATTERN.fullmatch(rest)
        if found is None:
            raise UrlError("url", f"invalid URL: expected {scheme}://host:port/path; percent-encode special characters")
        parts = found.groupdict(default="")
        if "," in parts["host"] or _SEVERAL_PORTS.match(parts["port"]):
            raise UrlError("host", "several hosts in the URL; a URL has one, so add a service for each of them")
        username, password = unquote(parts["username"]), unquote(parts["password"])
        path, query = parts["path"], parts["query"]
        if register_secrets:
            register_secret(password)
            if parts["host"]:  # without a host, the path is a file
                register_likely_keys("/".join((username, unquote(path), unquote(query))))
        host, port = parse_host(parts["host"]), _port(parts["port"])
        return cls(scheme=scheme, host=host, port=port, path=path, query=query, username=username, password=password)

    @classmethod
    def _parse_unix(cls, scheme: str, rest: str) -> Url:
        found = _UNIX_PATTERN.fullmatch(rest)
        path = unquote(found["socket"]) if found else ""
        if found is None or path.endswith("/") or "\0" in path:
            raise UrlError(
                "path",
                f"invalid URL: expected {scheme}:///run/app.sock or, with the path of a request, {scheme}:///run/app.sock:/health",
            )
        if len(os.fsencode(path)) > MAX_SOCKET_BYTES:
            raise UrlError("path", f"the path of the socket is too long: Linux allows {MAX_SOCKET_BYTES} bytes")
        query = found["query"] or ""
        register_likely_keys(unquote(query))
        return cls(scheme=scheme, socket=path, path=found["path"] or "", query=query)

    def __str__(self) -> str:
        """Without secrets: the password, and the query, which often contains a key."""
        query = f"?{MASK}" if self.query else ""
        if self.socket:
            request = f":{self.path or '/'}{query}" if self.path or query else ""
            return redacted(f"{self.scheme}://{self.socket}{request}")
        if not self.host:
            return redacted(f"{self.scheme}:{self.path}")
        user = f"{self.username}{f':{MASK}' if self.password else ''}@" if self.username or self.password else ""
        return redacted(f"{self.scheme}://{user}{self.host_port}{self.path}{query}")

    def __repr__(self) -> str:
        return f"<Url {self}>"

    @property
    def host_port(self) -> str:
        """host:port, as in a Host header."""
        return join_host_port(self.host, self.port)

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
        if (valid := ascii_host(self.host)) != self.host:
            hint = f'; write "{valid}"' if valid else ""
            raise UrlError("host", f"invalid host name in the URL{hint}")
        return self.host

    def require_port(self) -> int:
        if self.port is None:
            raise UrlError("port", f"the URL has no port; write {self.scheme}://{self.require_host()}:port")
        return self.port

    def reject_parts(self, form: UrlForm) -> None:
        """Raise if the URL has a part that the form does not have."""
        if form.path == NO_PATH and (self.path not in ("", "/") or self.query):
            raise UrlError(
                "path", f"{self.scheme} URLs have no path and no query; write {self.scheme}://{self.host_port}"
            )
        if self.query and not form.query:
            raise UrlError(
                "query", f"{self.scheme} URLs have no query; remove the question mark and everything after it"
            )
        if not form.has_credentials and (self.username or self.password):
            raise UrlError("credentials", f"{self.scheme} URLs have no user name and no password")


def validate_link(name: str, text: object) -> None:
    """A link that people are shown: a web page, without a password, and without what a browser would run."""
    if not isinstance(text, str) or not text.startswith(("http://", "https://")):
        raise InvalidValueError(f"{name} must begin with http:// or https://")
    if len(text) > MAX_LINK_CHARS:
        raise InvalidValueError(f"{name} has at most {MAX_LINK_CHARS} characters, not {len(text)}")
    if re.search(f"[{NOT_IN_LINK}]", text):
        raise InvalidValueError(f'{name} must have no spaces and none of "<>\\^`{{|}}; percent-encode them')
    try:
        url = Url.parse(text, register_secrets=False)
        url.require_host()
    except UrlError as exc:
        raise InvalidValueError(f"{name}: {exc}") from exc
    if url.username or url.password:
        raise InvalidValueError(f"{name} must have no user name and no password: everyone who gets the link sees them")


def join_host_port(host: str, port: int | None) -> str:
    """As in a URL: an IPv6 address is in brackets."""
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def parse_host(text: str) -> str:
    if not text.startswith("["):
        return unquote(text)
    try:
        return str(ipaddress.IPv6Address(text[1:-1]))
    except ValueError:
        raise UrlError("host", f"invalid IPv6 address: {text}") from None


def redact_url(text: str) -> str:
    """Without login and query, which may hold a secret. Accepts also a text that is not a URL."""
    address, *query = re.split("[?#]", text, maxsplit=1)
    if "@" in "".join(query):  # the end of the login is ambiguous
        return "…"
    _, at, address = address.rpartition("@")
    return f"{'…@' if at else ''}{address}{'?…' if query else ''}"


def is_valid_hostname(text: str) -> bool:
    return ascii_host(text) == text


def ascii_host(host: str) -> str | None:
    """The host with a name outside of ASCII encoded as in DNS; None if it is not a host."""
    if _PLAIN_HOST.fullmatch(host):  # the common case; the idna codec is loaded only for other names
        return host
    try:
        return None if set(host) & _NOT_IN_HOST else host.encode("idna").decode()
    except UnicodeError:
        return None


def _port(text: str) -> int | None:
    if not text:
        return None
    if not (re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) <= 65535):
        # The text is not shown: it may be part of a password.
        raise UrlError(
            "port", "invalid port: it must be a number from 1 to 65535; percent-encode @ : / ? and # in a password"
        )
    return int(text)
