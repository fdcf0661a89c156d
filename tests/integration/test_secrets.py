"""Leak test: secrets in every option that can have one, with services that echo all they receive.

All output of a node is searched for every secret. A secret begins and ends with a unique mark, and the search is for
the marks, so that a part of a secret is found too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node
from svcnode.agent.embed.node import internals_of
from svcnode.agent.logs import JsonFormatter
from svcnode.config import load
from svcnode.core import redaction
from tests.support import commands
from tests.support.backends import Backend, HttpBackend, Peer, ReceivedRequest, http_response
from tests.support.processes import Agent

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

USER = "reader"
PATHS = ("/svc/node", "/svc/node/services", "/svc/node/health", "/readyz", "/readyz?strict", "/livez", "/openapi.json")

# Raises an exception with the secrets in its text and in the text of its cause.
BROKEN_KIND = """
from dataclasses import dataclass
from urllib.parse import unquote
from svcnode.probes.base import UrlProbe

@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BrokenProbe(UrlProbe):
    key: str = ""

    async def check(self):
        try:
            raise KeyError(self.key)
        except KeyError as exc:
            raise RuntimeError(f"cannot use {unquote(self.url.path)} and {self.key!r}") from exc
"""


class Secrets:
    """Creates secrets for a configuration, and searches output for them."""

    def __init__(self, folder: Path) -> None:
        self.environ: dict[str, str] = {}
        self._folder = folder
        self._secrets: list[str] = []
        self._number = count(10)

    def new(self) -> str:
        number = next(self._number)
        # Characters that URLs, JSON, Python and headers encode differently, and that a header may contain.
        self._secrets.append(f"hd{number}Xq/\"'\\%é +tl{number}Zq")
        return self._secrets[-1]

    def env(self) -> str:
        name = f"SECRET_{len(self.environ)}"
        self.environ[name] = self.new()
        return f"${{{name}}}"

    def file(self, text: str | None = None) -> dict[str, str]:
        path = self._folder / f"secret-{next(self._number)}"
        path.write_text(f"{self.new() if text is None else text}\n", encoding="utf-8")
        return {"file": str(path)}

    def literal(self) -> str:
        """Encoded for a URL."""
        return quote(self.new(), safe="")

    def found_in(self, text: str) -> set[str]:
        marks = {mark for secret in self._secrets for mark in re.findall(r"hd\d+Xq|tl\d+Zq", secret)}
        tokens = {base64.b64encode(f"{USER}:{secret}".encode()).decode()[:20] for secret in self._secrets}
        return {mark for mark in marks | tokens if mark in text}


# ---- services that echo


def echo(peer: Peer) -> None:
    peer.send(peer.sock.recv(4096))
    peer.shutdown_write()


class EchoServer(HttpBackend):
    """A part of the path selects the response; the request is echoed."""

    def __init__(self) -> None:
        HttpBackend.__init__(self, self.respond)
        self.received: dict[str, None] = {}  # all Authorization headers, in order

    def respond(self, request: ReceivedRequest) -> bytes:
        mode = re.search("/(echo|rpc-error|rpc-result|garbage|ready|503)", request.target)
        assert mode is not None
        authorization = request.headers.get("authorization", "")
        self.received |= {authorization: None}
        scheme, _, token = authorization.partition(" ")
        document: dict[str, Any] = {
            "target": request.target,
            "body": request.body.decode(),
            "headers": request.headers,
            "received": list(self.received),
            "user": base64.b64decode(token).decode() if scheme == "Basic" else "",
        }
        if mode[1] == "garbage":
            return f"what is {request.target}?".encode()
        if mode[1] == "rpc-error":
            params = " ".join(map(str, json.loads(request.body)["params"]))
            document = {"id": 1, "error": {"code": 1, "message": "x" * 185 + params}}
        elif mode[1] == "rpc-result":
            document = {"id": 1, "result": json.loads(request.body)["params"]}
        response = http_response(503 if mode[1] == "503" else 200, json.dumps(document))
        return response.replace(b"Reason", f"received {quote(request.target)}".encode(), 1)


# ---- the configuration


class SecretsSetup:
    """Services with secrets, and for each the reason code and a redacted part of the reason."""

    def __init__(self, folder: Path, http: str, tcp: str) -> None:
        self.folder = folder
        self.secrets = Secrets(folder)
        self._install_kind()
        self.probes: dict[str, Any] = {}
        self.expected: dict[str, tuple[str, str]] = {}
        self._fill(self.secrets, http, tcp)

    def _install_kind(self) -> None:
        metadata = self.folder / "broken_kind-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-kind\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[svcnode.probes]\nbroken = broken_kind:BrokenProbe\n")
        (self.folder / "broken_kind.py").write_text(BROKEN_KIND)

    @property
    def environ(self) -> dict[str, Any]:
        return {**self.secrets.environ, "PYTHONPATH": str(self.folder)}

    @property
    def config(self) -> str:
        lines = ['[defaults]\ninterval = "60s"\ntimeout = "59s"\nfall = 1\nstart_period = "0s"']
        lines += ["[security]\nallow_exec = true"]
        for service_id, probe in self.probes.items():
            lines.append(f'[[services]]\nid = "{service_id}"\nprobe = {toml(probe)}')
        return "\n".join(lines)

    def add(self, service_id: str, code: str, reason: str, probe: Any) -> None:
        self.probes[service_id], self.expected[service_id] = probe, (code, reason)

    def _fill(self, secret: Secrets, http: str, tcp: str) -> None:
        add, closed, echo, unexpected = self.add, "127.0.0.1:1", f"http://{http}/echo", "unexpected_response"

        def asked(pointer: str, url: Any = echo, **options: Any) -> Any:
            """A check that fails, and whose reason has this part of what was sent."""
            return {"url": url, **options, "json": {pointer: "wrong"}}

        def rpc(path: str, **options: Any) -> Any:
            return {"url": f"jsonrpc+http://{http}/{path}", **options}

        def program(script: str, *arguments: Any) -> Any:
            return {"url": "exec:", "argv": ["/bin/sh", "-c", script, *arguments]}

        # In a URL: user, path, query, all of it.
        add("ready", "ok", "", {"url": f"http://{USER}:{secret.env()}@{http}/ready/{secret.env()}?k={secret.env()}"})
        with_password = f"http://{USER}:{secret.env()}@{http}/echo"
        add("password", unexpected, r'"Basic \*\*\*"', asked("/headers/authorization", with_password))
        with_password = f"http://{USER}:{secret.literal()}@{http}/echo"
        add("literal-password", unexpected, r'"reader:\*\*\*"', asked("/user", with_password))
        add("refused", "connection_refused", r"http://reader:\*\*\*@", f"http://{USER}:{secret.literal()}@{closed}/")
        add("query", unexpected, r'"/echo\?k=\*\*\*"', asked("/target", f"{echo}?k={secret.env()}"))
        add("path", "server_error", r"http://.*/503/\*\*\*$", f"http://{http}/503/{secret.env()}")
        whole = secret.file(f"{echo}/{secret.literal()}?k={secret.literal()}")
        add("whole-url", unexpected, r'"/echo/\*\*\*\?k=\*\*\*"', asked("/target", whole))
        add("no-http", "protocol_error", r"http://.*/garbage/\*\*\*$", f"http://{http}/garbage/{secret.env()}")
        add("missing-file", "file_not_found", r"/no/such/\*\*\*", f"file:/no/such/{secret.env()}")

        # In options.
        header = asked("/headers/x-key", headers={"X-Key": secret.file()})
        add("header", unexpected, r'/headers/x-key .*"\*\*\*"', header)
        add("bearer", unexpected, r'"Bearer \*\*\*"', asked("/headers/authorization", bearer=secret.file()))
        body = asked("/body", method="POST", body=f"key={secret.env()}")
        add("body", unexpected, r'"key=\*\*\*"', body)
        proxy = asked("/headers/proxy-authorization", proxy=f"http://{USER}:{secret.literal()}@{http}")
        add("proxy", unexpected, r'"Basic \*\*\*"', proxy)
        add("expected", unexpected, r'"\*\*\*": http', {"url": echo, "json": {"/target": secret.env()}})
        add("contains", unexpected, r'"\*\*\*": http', {"url": echo, "contains": secret.file()})
        send = {"url": f"tcp://{tcp}", "send": secret.env(), "expect": f"not {secret.env()}"}
        add("send", unexpected, r'"not \*\*\*"', send)
        add("sent-and-echoed", "ok", "", {"url": f"tcp://{tcp}", "send": (sent := secret.env()), "expect": sent})
        error = rpc("rpc-error", method=f"method-{secret.env()}", params=[secret.env()])
        add("rpc-error", "server_error", r"method-\*\*\*: .*x+\*\*\*", error)
        result = rpc("rpc-result", method="m", params=[secret.file()], result={"": "wrong"})
        add("rpc-result", unexpected, r'\["\*\*\*"\]', result)

        # In programs, and in a kind that raises.
        exits = f"exec:/bin/sh -c 'echo it is \"$0\"; exit 75' {secret.env()}"
        add("exec-url", "exit_status", r"75: it is \*\*\*$", exits)
        add("exec-argv", "exit_status", r"1: \*\*\*$", program('printf %s "$0"; exit 1', secret.file()))
        two_lines = secret.file(f"{secret.new()}\n{secret.new()}")
        add("exec-first-of-two-lines", "exit_status", r"1: \*\*\*$", program('echo "$0"; exit 1', two_lines))
        add("exec-missing", "command_not_started", r"/no/such/\*\*\*", f"exec:/no/such/{secret.env()}")
        broken = {"url": f"broken:{secret.env()}", "key": secret.file()}
        add("broken", "probe_error", r"RuntimeError: cannot use \*\*\* and '\*\*\*", broken)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.svcnode(*arguments, folder=self.folder, **self.environ)


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


@pytest.fixture
def secrets_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsSetup]:
    """The kind that raises can be used in this process too."""
    with EchoServer() as http, Backend(echo) as tcp:
        setup = SecretsSetup(tmp_path, http.address, tcp.address)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
        yield setup


@pytest.fixture(autouse=True)
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that one test registers must not be redacted in another."""
    monkeypatch.setattr(redaction, "_secrets", {})
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})


# ---- a running node


def test_a_running_node_shows_no_secret(secrets_setup: SecretsSetup) -> None:
    flags = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--log-format", "json")
    with Agent(secrets_setup.folder, *flags, config=secrets_setup.config, environ=secrets_setup.environ) as agent:
        for service_id, (code, reason) in secrets_setup.expected.items():
            if code == "ok":
                agent.wait_for_event("service_status", service=service_id, status="Up")
            else:
                entry = agent.wait_for_event("check_outcome", service=service_id, code=code)
                assert re.search(reason, entry["reason"]), entry
        agent.wait_for_log("service 'broken'")  # with a traceback
        responses = [agent.request(path).body for path in PATHS]
        responses += [
            agent.request(f"/svc/node/services/{service_id}/health").body for service_id in secrets_setup.probes
        ]
        assert agent.stop() == 0
        assert secrets_setup.secrets.found_in("\n".join(agent.lines)) == set()
        assert secrets_setup.secrets.found_in(b"\n".join(responses).decode()) == set()


def test_after_a_rotation_neither_the_old_nor_the_new_secret_is_shown(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    old, new = secrets.new(), secrets.new()
    (tmp_path / "key").write_text(old, encoding="utf-8")
    with EchoServer() as http:
        probe = {"url": f"http://{http.address}/echo", "bearer": {"file": "key"}, "json": {"/received": "wrong"}}
        defaults = '[defaults]\ninterval = "6s"\ntransition_interval = "200ms"\ntimeout = "5s"\nfall = 1\n'
        config = f'{defaults}[[services]]\nid = "db"\nprobe = {toml(probe)}'
        with Agent(tmp_path, "--listen", "127.0.0.1:0", "--log-level", "debug", config=config) as agent:
            agent.wait_for_log(r"service db .*/received .*\[.\"Bearer \*\*\*.\"\]")
            (tmp_path / "key").write_text(new, encoding="utf-8")
            agent.reload()
            agent.wait_for_log(r"service db .*/received .*\[.\"Bearer \*\*\*.\", .\"Bearer \*\*\*.\"\]")
            assert list(http.received) == [f"Bearer {old}", f"Bearer {new}"]
            (tmp_path / "key").write_text(f"{secrets.new()}\nof two lines", encoding="utf-8")
            agent.signal(signal.SIGHUP)
            agent.wait_for_event("reload_failed", key="services.db.probe.bearer")
            assert secrets.found_in("\n".join(agent.lines)) == set()


# ---- commands


def test_no_command_shows_a_secret(secrets_setup: SecretsSetup) -> None:
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    done = secrets_setup.run("check-config")
    assert done.returncode == 0, done.stderr
    assert all(service_id in done.stdout for service_id in secrets_setup.probes)
    assert secrets_setup.secrets.found_in(done.stdout + done.stderr) == set()
    for index, (service_id, probe) in enumerate(secrets_setup.probes.items()):
        options = probe if isinstance(probe, dict) else {"url": probe}
        if not isinstance(options.get("url"), str):
            continue  # the URL argument cannot be a file
        arguments = [f"-o{key}={toml(value)}" for key, value in options.items() if key != "url"]
        arguments += ["--timeout", "60s", "--allow-exec"]
        done = secrets_setup.run("probe", options["url"], *arguments, *["--json"] * (index % 2))
        shown = done.stdout + done.stderr
        assert done.stdout, shown
        assert secrets_setup.secrets.found_in(shown) == set(), shown
        assert ("***" in shown) or r"\*" not in secrets_setup.expected[service_id][1], shown


# ---- errors

ERROR_CONTEXTS = [
    "tcp://127.0.0.1:{}",
    "tcp://me:{}@127.0.0.1:1",
    "http://me:{}@127.0.0.1:99999/",
    "http://me:{}@[::1/",
    "http://me:{}@/",
    "htpp://me:{}@127.0.0.1",
    "heartbeat:{}",
    "file:///{}?x",
    {"url": "http://me:{}@127.0.0.1", "bearer": "{}"},
    {"url": "http://me:{}@127.0.0.1", "methd": "{}"},
    {"url": "http://127.0.0.1", "method": "{}"},
    {"url": "http://127.0.0.1", "status": "{}"},
    {"url": "http://127.0.0.1", "matches": "(?P<{}"},
    {"url": "http://127.0.0.1", "headers": {"X-Key\n": "{}"}},
    {"url": "http://127.0.0.1", "headers": {"X-Key": "{}\n"}},
    {"url": "http://127.0.0.1", "proxy": "http://me:{}@127.0.0.1:x"},
    {"url": "https://127.0.0.1", "ca": "/no/such/{}"},
    {"url": "svc+http://127.0.0.1", "prefix": "{}"},
    {"url": "tcp://127.0.0.1:1", "send": {"hex": "{}"}},
    {"url": "file:/x", "max_age": "{}"},
    {"url": "jsonrpc+http://127.0.0.1/{}", "method": "m", "params": "{}"},
    {"url": "exec:/bin/check {}"},
]


def with_secrets(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, dict):
        return {key: with_secrets(inner, secrets) for key, inner in value.items()}
    return value.replace("{}", secrets.env())


def test_no_configuration_error_shows_a_secret(secrets_setup: SecretsSetup) -> None:
    services = [
        f'[[services]]\nid = "s{number}"\nprobe = {toml(with_secrets(probe, secrets_setup.secrets))}'
        for number, probe in enumerate(ERROR_CONTEXTS)
    ]
    (secrets_setup.folder / "svcnode.toml").write_text("\n".join(services), encoding="utf-8")
    done = secrets_setup.run("check-config")
    assert done.returncode == 2, done.stdout
    named = [int(number) for number in re.findall(r"^svcnode: services\.s(\d+)\.probe", done.stderr, re.MULTILINE)]
    assert named == list(range(len(ERROR_CONTEXTS)))
    assert secrets_setup.secrets.found_in(done.stderr) == set(), done.stderr


def test_no_error_shows_the_password_of_an_invalid_url(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    for text in (
        "http://me:{}@127.0.0.1:99999/",
        "http://me:{}@[nonsense]/",
        "http://me@corp:{}@127.0.0.1/",
        "htpp://me:{}@127.0.0.1",
    ):
        url = text.format(secrets.literal())
        for arguments in (("probe", url), ("serve", "--service", f"db={url}")):
            done = commands.svcnode(*arguments, folder=tmp_path)
            assert (done.returncode, done.stderr[:9]) == (2, "svcnode: ")
            assert secrets.found_in(done.stdout + done.stderr) == set(), done.stderr


# ---- in a program


def test_no_repr_or_str_shows_a_secret(secrets_setup: SecretsSetup) -> None:
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    settings = load(secrets_setup.folder / "svcnode.toml", secrets_setup.environ)
    node = Node("validator-7", version="v1")
    changes: list[object] = []
    node.subscribe(changes.append)
    state = internals_of(node).state
    for service in settings.services:
        state.add(service.definition)
    handles = [node.handle(service.id) for service, _ in node]

    async def check_all() -> None:
        async with node.probing():
            while not all(state.last_evidence_at_s or service.id in WITHOUT_EVIDENCE for service, state in node):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    asyncio.run(check_all())
    shown: list[object] = [settings, node, handles, changes, list(node)]
    for service in settings.services:
        probe_config = service.definition.probe_config
        assert probe_config is not None
        probe: Any = probe_config.probe
        shown += [service, service.definition, probe_config, probe, probe.url, getattr(probe, "_request", None)]
    assert secrets_setup.secrets.found_in(" ".join(f"{value!r} {value!s}" for value in shown)) == set()
    assert "***" in repr(list(node))


# Services whose verdict is unknown.
WITHOUT_EVIDENCE = {"broken", "exec-missing"}


# ---- secrets that occur in the format of the log


@pytest.mark.parametrize("secret", ["message", "level", '": "', "info", "2026", '", "', "\\n\\n"])
def test_a_secret_that_is_part_of_the_json_syntax_does_not_break_a_line(secret: str) -> None:
    redaction.register_secret(secret)
    record = logging.makeLogRecord(
        {"msg": f"value: {secret}", "name": "svcnode", "levelname": "INFO", "created": 1_767_225_600.0}
    )
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "2026-01-01T00:00:00.000Z",
        "level": "info",
        "logger": "svcnode",
        "message": "value: ***",
    }
