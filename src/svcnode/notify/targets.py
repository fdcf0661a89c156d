"""Who is told: webhooks, and whatever Apprise knows. Each is made from what the configuration says of it.

A target is shown by its name, which holds no secret: of the address of a webhook the path and the query are often its
key, and of an Apprise URL any part may be one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.redaction import MASK, register_secret
from svcnode.core.text import type_name
from svcnode.net.http1 import DEFAULT_PORTS, Http1Client
from svcnode.net.os_errors import connection_error_text
from svcnode.net.threads import DaemonCall
from svcnode.net.url import Url
from svcnode.probes.interpolate import interpolate, interpolate_url
from svcnode.probes.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from apprise import Apprise

    from svcnode.notify.message import Message

MIN_KEY_CHARS = 16  # a shorter word of a path is more often a name
MIN_PART_CHARS = 8  # of an Apprise URL

_PROBE_ONLY_OPTIONS = ("min_cert_days", "reuse")


class NotificationTarget(Protocol):
    @property
    def name(self) -> str: ...

    async def deliver(self, message: Message, lost: int) -> str | None:
        """One attempt; returns why it failed, or None. The caller sets the deadline."""


# ---- webhooks


@dataclass(frozen=True, slots=True, repr=False)
class Webhook:
    """Posts JSON; any 2xx is success, and a redirect is none."""

    options: Http1Client

    @property
    def name(self) -> str:
        return f"{self.options.url.scheme}://{self.options.url.host_port}"

    def __repr__(self) -> str:
        return f"<Webhook {self.name}>"

    async def deliver(self, message: Message, lost: int) -> str | None:
        body = json.dumps(message.document(lost), ensure_ascii=False).encode()
        request = self.options.build_request(
            self.options.url.target, method="POST", body=body, content_type="application/json"
        )
        try:
            answer = await self.options.send(request)
        except OSError as exc:
            return connection_error_text(exc)
        return None if 200 <= answer.status < 300 else f"it answered {answer.status}"


def webhook_from(given: object, environ: Mapping[str, str]) -> Webhook:
    """From a URL, or a table with a URL and the options of HTTP and TLS that probes have as well."""
    if not isinstance(given, dict) or given.keys() == {"file"}:
        given = {"url": given}
    words: dict[str, Any] = dict(given)
    if "url" not in words:
        raise InvalidValueError('a webhook has a url: { url = "https://…", headers = { … } }')
    url = Url.parse(_resolved_url(words.pop("url"), environ))
    if url.scheme not in DEFAULT_PORTS:
        others = 'for others, set apprise = ["…"]'
        raise InvalidValueError(f'a webhook is an http:// or https:// URL, not "{url.scheme}"; {others}')
    _register_secret_parts(f"{url.path}?{url.query}", r"[/?&=]", MIN_KEY_CHARS)
    for name, value in words.items():
        if name in _PROBE_ONLY_OPTIONS:
            raise OptionError(name, "is for probes, and has no meaning here")
        try:
            words[name] = interpolate(value, environ)
        except InvalidValueError as exc:
            raise OptionError(name, str(exc)) from exc
    options = Http1Client(url, **parse_options(Http1Client, words))
    options.build_request(url.target)  # what could never be sent is refused at once
    return Webhook(options)


def _resolved_url(given: object, environ: Mapping[str, str]) -> str:
    if not isinstance(given, str | dict):
        raise InvalidValueError(f'a URL is a string, or {{ file = "…" }} that names its file, not {type_name(given)}')
    return interpolate_url(given, environ)


def _register_secret_parts(text: str, between: str, min_chars: int) -> None:
    for word in re.split(between, text):
        if len(word) >= min_chars:
            register_secret(word)
            register_secret(unquote(word))


# ---- Apprise


@dataclass(frozen=True, slots=True, repr=False)
class AppriseTarget:
    """One Apprise URL. It is called in a thread; one that does not return is not called again before it does."""

    url: str
    _apprise: Apprise = field(compare=False)
    _thread: DaemonCall = field(init=False, compare=False, default_factory=partial(DaemonCall, "apprise"))

    @property
    def name(self) -> str:
        return f"{_scheme(self.url)}://{MASK}"

    def __repr__(self) -> str:
        return f"<AppriseTarget {self.name}>"

    async def deliver(self, message: Message, lost: int) -> str | None:
        if self._thread.is_busy:
            return "the previous attempt has not returned yet"
        return await self._thread.call(partial(self._notify, message, lost))

    def _notify(self, message: Message, lost: int) -> str | None:
        with _AppriseLogCapture() as overheard:
            is_sent = self._apprise.notify(
                title=message.title, body=message.body(lost), notify_type=message.notify_type, body_format="text"
            )
        return None if is_sent else overheard.reason


def apprise_from(given: object, environ: Mapping[str, str]) -> AppriseTarget:
    url = _resolved_url(given, environ)
    scheme, _, rest = url.partition("://")
    if not rest or not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise InvalidValueError("not an Apprise URL, which has the form scheme://…")
    _register_apprise_secrets(url, rest)
    _silence_apprise()
    with warnings.catch_warnings():  # which it gives away when it loads what it needs, all of it at the first URL
        warnings.simplefilter("ignore")
        apprise = _apprise()
        is_usable = apprise.add(url)
    if not is_usable:
        raise InvalidValueError(f"Apprise cannot use it: unknown scheme, or not what {scheme}:// needs")
    return AppriseTarget(url, apprise)


def _apprise() -> Apprise:
    try:
        from apprise import Apprise, AppriseAsset
    except ModuleNotFoundError as exc:
        raise ProbeError('Apprise is not installed: pip install "svcnode[notify]"') from exc
    return Apprise(asset=AppriseAsset(app_id="svcnode", app_desc="svcnode", async_mode=False))


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _register_apprise_secrets(url: str, rest: str) -> None:
    register_secret(url)
    register_secret(rest)
    beginning, _, path = rest.partition("/")
    user, _, host = beginning.rpartition("@")
    place = host.partition(":")[0]
    # In the place of the host there is often a key, but a real host is no secret, and others may be looked at there.
    is_host = "." in place or place in ("localhost", "") or host.startswith("[")
    _register_secret_parts("/".join([user, path] if is_host else [rest]), r"[:/?&=#@,]", MIN_PART_CHARS)


def _silence_apprise() -> None:
    """What is to be said of an attempt, we say; what it calls would log addresses with the keys in them."""
    apprise = logging.getLogger("apprise")
    apprise.propagate = False
    apprise.setLevel(logging.WARNING)
    if not apprise.handlers:
        apprise.addHandler(logging.NullHandler())
    for name in ("requests", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _AppriseLogCapture(logging.Handler):
    """Why Apprise failed in this thread, which it says in its log only. Numbers are taken from there, and no text."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread_id = threading.get_ident()
        self.reason = "Apprise could not deliver it"

    def __enter__(self) -> _AppriseLogCapture:
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("apprise").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread_id:
            return
        said = record.getMessage()
        if found := re.search(r"\berror=([1-5][0-9][0-9])\b", said):
            self.reason = f"it answered {found[1]}"
        elif "onnection error" in said:
            self.reason = "it cannot be reached"
