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
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node
from svcnode.config import load
from svcnode.core import redaction
from svcnode.logs import JsonFormatter
from tests.support.processes import Agent, run_command

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


class EchoHandler(BaseHTTPRequestHandler):
    """The first part of the path selects the response; the request is echoed."""

    server: EchoServer

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        mode = re.search("/(echo|rpc-error|rpc-result|garbage|moved|hang|ready|503)", self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received |= {headers.get("authorization", ""): None}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        echo = {
            "target": self.path,
            "body": body,
            "headers": headers,
            "received": list(self.server.received),
            "user": base64.b64decode(token).decode() if scheme == "Basic" else "",
        }
        match mode and mode[1]:
            case "ready" | "echo":
                self.send(200, echo)
            case "rpc-error":
                params = " ".join(map(str, json.loads(body)["params"]))
                self.send(200, {"id": 1, "error": {"code": 1, "message": "x" * 185 + params}})
            case "rpc-result":
                self.send(200, {"id": 1, "result": json.loads(body)["params"]})
            case "garbage":
                self.wfile.write(f"what is {self.path}?".encode())
            case "moved":
                self.send(302, echo, location=self.path.replace("moved", "503"))
            case "hang":
                self.server.stopped.wait()
            case _:
                self.send(503, echo)

    do_GET = do_POST = respond  # noqa: N815  the names of http.server

    def send(self, code: int, document: object, location: str = "") -> None:
        body = json.dumps(document).encode()
        self.send_response(code, f"received {quote(self.path)}")
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.stopped = threading.Event()
        self.received: dict[str, None] = {}  # all Authorization headers, in order

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def echoing_http() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.stopped.set()
            server.shutdown()
            thread.join()


@contextmanager
def echoing_tcp() -> Iterator[str]:
    """Echoes the first bytes and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(connection.recv(4096))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends accept()
            thread.join()


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
    def environ(self) -> dict[str, str]:
        return {**self.secrets.environ, "PYTHONPATH": str(self.folder)}

    @property
    def config(self) -> str:
        lines = ['[defaults]\ninterval = "20s"\ntimeout = "5s"\nfall = 1\nstart_period = "0s"']
        lines += ["[security]\nallow_exec = true"]
        for service_id, probe in self.probes.items():
            timeout = '\ntimeout = "300ms"' if service_id == "timed-out" else ""
            lines.append(f'[[services]]\nid = "{service_id}"\nprobe = {toml(probe)}{timeout}')
        return "\n".join(lines)

    def add(self, service_id: str, code: str, reason: str, probe: Any) -> None:
        self.probes[service_id], self.expected[service_id] = probe, (code, reason)

    def _fill(self, secret: Secrets, http: str, tcp: str) -> None:
        add, wrong = self.add, "wrong"
        echo = f"http://{http}/echo"
        closed = "127.0.0.1:1"

        # In a URL: user, path, query, all of it.
        add("ready", "ok", "", {"url": f"http://{USER}:{secret.env()}@{http}/ready/{secret.env()}?k={secret.env()}"})
        add(
            "password",
            "unexpected_response",
            r'"Basic \*\*\*"',
            {"url": f"http://{USER}:{secret.env()}@{http}/echo", "json": {"/headers/authorization": wrong}},
        )
        add(
            "literal-password",
            "unexpected_response",
            r'"Basic \*\*\*"',
            {"url": f"http://{USER}:{secret.literal()}@{http}/echo", "json": {"/headers/authorization": wrong}},
        )
        add(
            "literal-password-alone",
            "unexpected_response",
            r'"reader:\*\*\*"',
            {"url": f"http://{USER}:{secret.literal()}@{http}/echo", "json": {"/user": wrong}},
        )
        add("refused", "connection_refused", r"http://reader:\*\*\*@", f"http://{USER}:{secret.literal()}@{closed}/")
        add("refused-bare", "connection_refused", r"http://:\*\*\*@", f"http://:{secret.literal()}@{closed}/")
        add(
            "query",
            "unexpected_response",
            r'"/echo\?k=\*\*\*"',
            {"url": f"{echo}?k={secret.env()}", "json": {"/target": wrong}},
        )
        add("path", "server_error", r"http://.*/503/\*\*\*$", f"http://{http}/503/{secret.env()}")
        add(
            "whole-url",
            "server_error",
            r"http://reader:\*\*\*@.*/503/\*\*\*\?\*\*\*",
            secret.file(f"http://{USER}:{secret.literal()}@{http}/503/{secret.literal()}?k={secret.literal()}"),
        )
        add(
            "whole-url-echoed",
            "unexpected_response",
            r'"/echo/\*\*\*\?k=\*\*\*"',
            {
                "url": secret.file(f"{echo}/{secret.literal()}?k={secret.literal()}"),
                "json": {"/target": wrong},
            },
        )
        add("starting", "starting", r"/503/\*\*\*$", {
            "url": f"http://{http}/503/{secret.env()}", "starting_status": 503,
        })  # fmt: skip
        add("moved", "server_error", r"http://.*/503/\*\*\*$", {
            "url": f"http://{http}/moved/{secret.env()}", "redirects": 1,
        })  # fmt: skip
        add("no-http", "protocol_error", r"http://.*/garbage/\*\*\*$", f"http://{http}/garbage/{secret.env()}")
        add("timed-out", "timeout", r"0\.3 s", f"http://{http}/hang/{secret.env()}?{secret.env()}")
        add("missing-file", "file_not_found", r"/no/such/\*\*\*", f"file:/no/such/{secret.env()}")
        add("missing-sqlite", "file_not_found", r"/no/such/\*\*\*", f"sqlite:/no/such/{secret.env()}")
        add("node", "unhealthy", r"svc\+http://.*/503/\*\*\*$", f"svc+http://{http}/503/{secret.env()}")

        # In options.
        add(
            "header",
            "unexpected_response",
            r'/headers/x-key .*"\*\*\*"',
            {"url": echo, "headers": {"X-Key": secret.file()}, "json": {"/headers/x-key": wrong}},
        )
        add(
            "bearer",
            "unexpected_response",
            r'"Bearer \*\*\*"',
            {"url": echo, "bearer": secret.file(), "json": {"/headers/authorization": wrong}},
        )
        add(
            "body",
            "unexpected_response",
            r'"key=\*\*\*"',
            {"url": echo, "method": "POST", "body": f"key={secret.env()}", "json": {"/body": wrong}},
        )
        add(
            "proxy",
            "unexpected_response",
            r'"Basic \*\*\*"',
            {
                "url": echo,
                "proxy": f"http://{USER}:{secret.literal()}@{http}",
                "json": {"/headers/proxy-authorization": wrong},
            },
        )
        add("expected", "unexpected_response", r'"\*\*\*": http', {"url": echo, "json": {"/target": secret.env()}})
        add("contains", "unexpected_response", r'"\*\*\*": http', {"url": echo, "contains": secret.file()})
        add("send", "unexpected_response", r'"not \*\*\*"', {
            "url": f"tcp://{tcp}", "send": secret.env(), "expect": f"not {secret.env()}",
        })  # fmt: skip
        add("sent-and-echoed", "ok", "", {"url": f"tcp://{tcp}", "send": (sent := secret.env()), "expect": sent})
        add("rpc-error", "server_error", r"method-\*\*\*: .*x+\*\*\*", {
            "url": f"jsonrpc+http://{http}/rpc-error", "method": f"method-{secret.env()}", "params": [secret.env()],
        })  # fmt: skip
        add("rpc-result", "unexpected_response", r'\["\*\*\*"\]', {
            "url": f"jsonrpc+http://{http}/rpc-result", "method": "m", "params": [secret.file()], "result": {"": wrong},
        })  # fmt: skip

        # In programs, and in a kind that raises.
        add(
            "exec-url",
            "exit_status",
            r"75: it is \*\*\*$",
            f"exec:/bin/sh -c 'echo it is \"$0\"; exit 75' {secret.env()}",
        )
        add("exec-argv", "exit_status", r"1: \*\*\*$", {
            "url": "exec:", "argv": ["/bin/sh", "-c", 'printf %s "$0"; exit 1', secret.file()],
        })  # fmt: skip
        add("exec-first-of-two-lines", "exit_status", r"1: \*\*\*$", {
            "url": "exec:",
            "argv": ["/bin/sh", "-c", 'echo "$0"; exit 1', secret.file(f"{secret.new()}\n{secret.new()}")],
        })  # fmt: skip
        add("exec-missing", "command_not_started", r"/no/such/\*\*\*", f"exec:/no/such/{secret.env()}")
        add("broken", "probe_error", r"RuntimeError: cannot use \*\*\* and '\*\*\*", {
            "url": f"broken:{secret.env()}", "key": secret.file(),
        })  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command([sys.executable, "-m", "svcnode", *arguments], self.folder, **self.environ)


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


@pytest.fixture
def secrets_setup(tmp_path: Path) -> Iterator[SecretsSetup]:
    with echoing_http() as http, echoing_tcp() as tcp:
        yield SecretsSetup(tmp_path, http.address, tcp)


@pytest.fixture
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that one test registers must not be redacted in another."""
    monkeypatch.setattr(redaction, "_secrets", {})
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})


# ---- a running node


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_running_node_shows_no_secret(secrets_setup: SecretsSetup, log_format: str) -> None:
    flags = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--log-format", log_format)
    with Agent(secrets_setup.folder, *flags, config=secrets_setup.config, environ=secrets_setup.environ) as agent:
        for service_id, (code, reason) in secrets_setup.expected.items():
            if log_format == "text":
                agent.wait_for_log(f"service {service_id} .*{reason}")
            elif code == "ok":
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
        assert {"ready", "sent-and-echoed"} <= secrets_setup.probes.keys()
        if log_format == "json":
            assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in agent.lines)


def test_after_a_rotation_neither_the_old_nor_the_new_secret_is_shown(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    old, new = secrets.new(), secrets.new()
    (tmp_path / "key").write_text(old, encoding="utf-8")
    with echoing_http() as http:
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


def test_check_config_shows_no_secret(secrets_setup: SecretsSetup) -> None:
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    done = secrets_setup.run("check-config")
    assert done.returncode == 0, done.stderr
    assert all(service_id in done.stdout for service_id in secrets_setup.probes)
    assert secrets_setup.secrets.found_in(done.stdout + done.stderr) == set()


def test_svcnode_probe_shows_no_secret(secrets_setup: SecretsSetup) -> None:
    for index, (service_id, probe) in enumerate(secrets_setup.probes.items()):
        options = probe if isinstance(probe, dict) else {"url": probe}
        if not isinstance(options.get("url"), str):
            continue  # the URL argument cannot be a file
        arguments = [f"-o{key}={toml(value)}" for key, value in options.items() if key != "url"]
        arguments += ["--timeout", "300ms" if service_id == "timed-out" else "5s", "--allow-exec"]
        done = secrets_setup.run("probe", options["url"], *arguments, *["--json"] * (index % 2))
        shown = done.stdout + done.stderr
        assert done.stdout, shown
        assert secrets_setup.secrets.found_in(shown) == set(), shown
        assert ("***" in shown) or r"\*" not in secrets_setup.expected[service_id][1], shown


# ---- errors

ERROR_CONTEXTS = [
    "tcp://127.0.0.1:{}",
    "tcp://me:{}@127.0.0.1:1",
    "tcp://127.0.0.1:1/{}",
    "http://me:{}@127.0.0.1:99999/",
    "http://me:{}@[::1/",
    "http://me:{}@[nonsense]/",
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
    {"url": "http://127.0.0.1", "proxy": "https://me:{}@127.0.0.1"},
    {"url": "http://127.0.0.1", "proxy": "http://me:{}@127.0.0.1:x"},
    {"url": "https://127.0.0.1", "ca": "/no/such/{}"},
    {"url": "svc+http://127.0.0.1/{}", "prefix": "/{}"},
    {"url": "svc+http://127.0.0.1", "prefix": "{}"},
    {"url": "tcp://127.0.0.1:1", "send": {"hex": "{}"}},
    {"url": "file:/x", "max_age": "{}"},
    {"url": "disk:/x", "min_free": "{}"},
    {"url": "jsonrpc+http://127.0.0.1/{}", "method": "m", "params": "{}"},
    {"url": "exec:/bin/check {}"},
]


def with_secrets(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, dict):
        return {key: with_secrets(inner, secrets) for key, inner in value.items()}
    return value.replace("{}", secrets.env())


@pytest.mark.parametrize("index", range(len(ERROR_CONTEXTS)))
def test_no_configuration_error_shows_a_secret(index: int, secrets_setup: SecretsSetup) -> None:
    probe = with_secrets(ERROR_CONTEXTS[index], secrets_setup.secrets)
    (secrets_setup.folder / "svcnode.toml").write_text(
        f'[[services]]\nid = "db"\nprobe = {toml(probe)}', encoding="utf-8"
    )
    done = secrets_setup.run("check-config")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("svcnode: services.db.probe")
    assert done.stderr.count("\n") == 1
    assert secrets_setup.secrets.found_in(done.stderr) == set(), done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "tcp://me:{}@127.0.0.1:1",
        "http://me:{}@127.0.0.1:99999/",
        "http://me:{}@[::1/",
        "http://me:{}@[nonsense]/",
        "http://me@corp:{}@127.0.0.1/",
        "htpp://me:{}@127.0.0.1",
    ],
)
@pytest.mark.parametrize("command", ["serve", "probe"])
def test_no_error_shows_the_password_of_an_invalid_url(command: str, url: str, tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    url = url.format(secrets.literal())
    arguments = ("probe", url) if command == "probe" else ("serve", "--service", f"db={url}")
    done = run_command([sys.executable, "-m", "svcnode", *arguments], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("svcnode: ")
    assert secrets.found_in(done.stdout + done.stderr) == set(), done.stderr


# ---- in a program


@pytest.mark.usefixtures("_isolated_secrets")
def test_no_repr_or_str_shows_a_secret(secrets_setup: SecretsSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(secrets_setup.folder))
    monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    settings = load(secrets_setup.folder / "svcnode.toml", secrets_setup.environ)
    node = Node("validator-7", version="v1")
    changes: list[object] = []
    node.subscribe(changes.append)
    handles = [node.add(service.definition) for service in settings.services]

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


@pytest.mark.usefixtures("_isolated_secrets")
@pytest.mark.parametrize("secret", ["message", "level", '": "', "info", "2026", '", "', "\\n\\n"])
def test_a_secret_that_is_part_of_the_json_syntax_does_not_break_a_line(secret: str) -> None:
    redaction.register_secret(secret)
    record = logging.makeLogRecord(
        {"msg": f"value: {secret}", "name": "svcnode", "levelname": "INFO", "created": 1_767_225_600.0}
    )
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "2026-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "svcnode",
        "message": "value: ***",
    }
