"""What a target delivers, and the targets that are built from the configuration: webhooks and Apprise URLs.

Alertmanager is in alertmanager.py.

A target is shown by its name, which contains no secret: the path and the query of a webhook often contain its key, and
any part of an Apprise URL may be one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import warnings
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol
from urllib.parse import unquote

from svcnode.core.codes import ReasonCode, code_for_http_status
from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.redaction import MASK, register_secret
from svcnode.core.text import type_name
from svcnode.core.url import Url
from svcnode.net.http1 import DEFAULT_PORTS, Http1Client
from svcnode.net.os_errors import code_for_os_error, connection_error_text
from svcnode.net.threads import DaemonCall
from svcnode.probes.interpolate import interpolate, interpolate_url
from svcnode.probes.options import parse_options, raise_first
from svcnode.version import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from apprise import Apprise

    from svcnode.net.http1 import PreparedRequest

MIN_KEY_CHARS = 16  # a shorter segment of a webhook's path is more often a name than a key
MIN_PART_CHARS = 8  # of an Apprise URL

PROBE_ONLY_OPTIONS = ("min_cert_days", "reuse")
HTTP_OPTIONS = (*(field.name for field in fields(Http1Client) if field.init), *PROBE_ONLY_OPTIONS)


NotifyType = Literal["failure", "warning", "success", "info"]  # the types of Apprise


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    title: str
    lines: tuple[str, ...]
    notify_type: NotifyType
    fields: dict[str, Any] = field(default_factory=dict)
    alerts: tuple[dict[str, Any], ...] = ()  # all that is open, for Alertmanager

    def body(self) -> str:
        return "\n".join(self.lines)

    def document(self) -> dict[str, Any]:
        """The JSON of a webhook. `text` contains the whole message for a chat."""
        return {"text": "\n".join([self.title, *(f"- {line}" for line in self.lines)]), **self.fields}


class DeliveryError(NamedTuple):
    """Why a message was not delivered."""

    reason: str
    code: ReasonCode


class NotificationTarget(Protocol):
    # A target that gets all that is open, with every change and again after this time; None: it gets the changes.
    resend_interval_s: ClassVar[float | None]

    @property
    def name(self) -> str:
        """Without any secret; other targets may have the same."""

    @property
    def fingerprint(self) -> str:
        """Of its whole URL, which others of this name do not have."""

    async def deliver(self, message: Message, /) -> DeliveryError | None:
        """One attempt. The caller sets the deadline."""


def fingerprint(url: str) -> str:
    """Short enough that a secret in the URL cannot be found by it."""
    return sha256(url.encode()).hexdigest()[:8]


# ---- HTTP


def url_name(url: Url) -> str:
    return f"{url.scheme}://{url.host_port}"


async def post_json(client: Http1Client, path: str, document: object) -> DeliveryError | None:
    body = json.dumps(document, ensure_ascii=False).encode()
    request = client.build_request(path, method="POST", body=body, content_type="application/json")
    return await send_request(client, request)


async def send_request(client: Http1Client, request: PreparedRequest) -> DeliveryError | None:
    """Any 2xx response is success; redirects are not followed."""
    try:
        response = await client.send(request)
    except OSError as exc:
        return DeliveryError(connection_error_text(exc), code_for_os_error(exc))
    if 200 <= response.status < 300:
        return None
    return DeliveryError(f"HTTP status {response.status}", client.code_for_status(response.status))


def http_client_from(entry: object, environ: Mapping[str, str], what: str, hint: str = "") -> Http1Client:
    """From a URL, or from a table with a URL and the HTTP and TLS options of probes."""
    if not isinstance(entry, dict) or entry.keys() == {"file"}:
        entry = {"url": entry}
    table: dict[str, Any] = dict(entry)
    if "url" not in table:
        raise InvalidValueError('missing url; write { url = "https://…", headers = { … } }')
    url = Url.parse(_resolved_url(table.pop("url"), environ))
    if url.scheme not in DEFAULT_PORTS:
        raise InvalidValueError(f'unsupported scheme "{url.scheme}"; {what} needs http:// or https://{hint}')
    _register_secret_parts(f"{url.path}?{url.query}", r"[/?&=]", MIN_KEY_CHARS)
    errors = [OptionError(name, "applies to probes only; remove it") for name in table if name in PROBE_ONLY_OPTIONS]
    for name, value in table.items():
        try:
            table[name] = interpolate(value, environ)
        except InvalidValueError as exc:
            errors.append(OptionError(name, str(exc)))
    raise_first(errors)
    client = Http1Client(url, **parse_options(Http1Client, table))
    client.build_request(url.target)  # raises an error if the request cannot be built
    return client


# ---- webhooks


@dataclass(frozen=True, slots=True, repr=False)
class Webhook:
    """Posts JSON."""

    options: Http1Client
    resend_interval_s: ClassVar[float | None] = None

    @property
    def name(self) -> str:
        return url_name(self.options.url)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.options.url.target)

    def __repr__(self) -> str:
        return f"<Webhook {self.name}>"

    async def deliver(self, message: Message) -> DeliveryError | None:
        return await post_json(self.options, self.options.url.target, message.document())


def webhook_from(entry: object, environ: Mapping[str, str]) -> Webhook:
    return Webhook(http_client_from(entry, environ, "a webhook", '; for other services set apprise = ["…"]'))


def _resolved_url(entry: object, environ: Mapping[str, str]) -> str:
    if not isinstance(entry, str | dict):
        raise InvalidValueError(f'must be a string or {{ file = "…" }}, not {type_name(entry)}')
    return interpolate_url(entry, environ)


def _register_secret_parts(text: str, separators: str, min_chars: int) -> None:
    for part in re.split(separators, text):
        if len(part) >= min_chars:
            register_secret(part)
            register_secret(unquote(part))


# ---- Apprise


@dataclass(frozen=True, slots=True, repr=False)
class AppriseTarget:
    """One Apprise URL. It is called in a thread, and not again before the previous call has returned."""

    url: str
    _apprise: Apprise = field(compare=False)
    _thread: DaemonCall = field(init=False, compare=False, default_factory=partial(DaemonCall, "apprise"))
    resend_interval_s: ClassVar[float | None] = None

    @property
    def name(self) -> str:
        return f"{_scheme(self.url)}://{MASK}"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.url)

    @property
    def endpoint(self) -> tuple[str, int | None] | None:
        """The host and port that messages are sent to; None if the URL has, or may have, a key instead of a host."""
        service: Any
        (service,) = self._apprise  # one for each URL
        host = str(getattr(service, "smtp_host", None) or service.host or "")
        forms = ["{host}" in template for template in service.templates]
        return (host, service.port) if host and (all(forms) or (any(forms) and "." in host)) else None

    def __repr__(self) -> str:
        return f"<AppriseTarget {self.name}>"

    async def deliver(self, message: Message) -> DeliveryError | None:
        if self._thread.is_busy:
            return DeliveryError("the previous attempt is still running", ReasonCode.STILL_RUNNING)
        return await self._thread.call(partial(self._notify, message))

    def _notify(self, message: Message) -> DeliveryError | None:
        with _AppriseLogCapture() as capture:
            is_sent = self._apprise.notify(
                title=message.title, body=message.body(), notify_type=message.notify_type, body_format="text"
            )
        return None if is_sent else capture.error


def apprise_from(entry: object, environ: Mapping[str, str]) -> AppriseTarget:
    if isinstance(entry, dict) and "url" in entry:
        entry = entry["url"]
    url = _resolved_url(entry, environ)
    scheme, _, rest = url.partition("://")
    if not rest or not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise InvalidValueError("invalid Apprise URL; write scheme://…")
    _register_apprise_secrets(url, rest)
    _silence_apprise()
    with warnings.catch_warnings():  # of the plugins, which Apprise imports at the first URL
        warnings.simplefilter("ignore")
        apprise = _apprise()
        is_usable = apprise.add(url)
    if not is_usable:
        raise InvalidValueError(f"Apprise rejects this {scheme}:// URL: unknown scheme or missing parts")
    return AppriseTarget(url, apprise)


def _apprise() -> Apprise:
    try:
        from apprise import Apprise, AppriseAsset
    except ModuleNotFoundError as exc:
        raise ProbeError(f"Apprise is not installed: {install_command('notify')}") from exc
    return Apprise(asset=AppriseAsset(app_id="svcnode", app_desc="svcnode", async_mode=False))


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _register_apprise_secrets(url: str, rest: str) -> None:
    register_secret(url)
    register_secret(rest)
    authority, _, path = rest.partition("/")
    user, _, host_port = authority.rpartition("@")
    host = host_port.partition(":")[0]
    # Many Apprise URLs have a key instead of a host. A real host is not redacted: services may run on it.
    is_host = "." in host or host in ("localhost", "") or host_port.startswith("[")
    _register_secret_parts("/".join([user, path] if is_host else [rest]), r"[:/?&=#@,]", MIN_PART_CHARS)


def _silence_apprise() -> None:
    """Keep the log lines of Apprise and its libraries out of our log: they contain URLs with keys."""
    apprise = logging.getLogger("apprise")
    apprise.propagate = False
    apprise.setLevel(logging.WARNING)
    if not apprise.handlers:
        apprise.addHandler(logging.NullHandler())
    for name in ("requests", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _AppriseLogCapture(logging.Handler):
    """Finds the cause of a failure in this thread in the log of Apprise. Copies no text, which may contain keys."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread_id = threading.get_ident()
        self.error = DeliveryError("Apprise reported a failure", ReasonCode.OTHER)

    def __enter__(self) -> _AppriseLogCapture:
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread_id:
            return
        text = record.getMessage()
        if match := re.search(r"\berror=([1-5][0-9][0-9])\b", text):
            self.error = DeliveryError(f"HTTP status {match[1]}", code_for_http_status(int(match[1])))
        elif "onnection error" in text:
            self.error = DeliveryError("cannot connect", ReasonCode.CONNECTION_REFUSED)
