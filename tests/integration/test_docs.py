"""The examples of the documentation work, and the documentation has every option and key."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import re
import shlex
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

from svcnode.cli import build_parser, load_command
from svcnode.cli._args import CommandParser
from svcnode.cli.init.catalog import CATALOG
from svcnode.config.sources import SERVICES_VARIABLE, environment_keys
from svcnode.probes import KINDS
from svcnode.version import __version__
from tests.support import commands
from tests.support.backends import HttpBackend, closed_port, http_response
from tests.support.certificates import make_certificate
from tests.support.documentation import PAGES, ROOT, shown_commands
from tests.support.ports import free_port
from tests.support.processes import Agent, run_command
from tests.support.servers import provision
from tests.support.servers.chains import respond_as
from tests.support.servers.http_request import http_request
from tests.support.unit_sandbox import parse_unit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

OVERVIEW = ROOT / "docs" / "probes" / "README.md"
PROBES = "\n".join(page.read_text() for page in sorted(OVERVIEW.parent.glob("*.md")))
ALL_PAGES = (
    *PAGES,
    *(ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")),
)
# The shortest valid URL of kinds without a host.
URLS = {
    "clock": "clock:",
    "disk": "disk:/var/lib",
    "dns": "dns://localhost:53/example.org",
    "ethereum+unix": "ethereum+unix:///run/geth.ipc",
    "exec": "exec:",
    "file": "file:/run/app/done",
    "heartbeat": "heartbeat:",
    "http+unix": "http+unix:///run/app.sock:/health",
    "icmp": "icmp:10.0.0.1",
    "jsonrpc+unix": "jsonrpc+unix:///run/geth.ipc",
    "redis+sentinel": "redis+sentinel://localhost/mymaster",
    "sqlite": "sqlite:/var/lib/ledger.db",
    "systemd": "systemd:validator.service",
}
TLS = "Options of TLS"
HTTP = "Options of HTTP"
# Tables of options that kinds share, and an option that only these kinds have.
SHARED = {
    HTTP: "headers",
    "Options of connections": "reuse",
    "Options of logging in": "username",
    "Options of SQL servers": "primary",
    "Options of references": "reference",
    "Options of accounts and contracts": "account",
}
# Options that a kind inherits and refuses.
REFUSED = {
    "etcd": {"bearer"},
    "http+unix": {"proxy", "redirects"},
    "postgres": {"min_cert_days"},
    "postgresql": {"min_cert_days"},
}
REQUIRED = {"mariadb": ("username",), "mysql": ("username",)}
# Options that cannot be combined with the other ones, such as a token with a user name; with those that they need.
SEPARATE = {
    "mariadb": ("write",),
    "mysql": ("write",),
    "nats": ("token", "credentials_file"),
    "postgres": ("write",),
    "postgresql": ("write",),
    "disk": ("read_only",),
    "heartbeat": ("ttl", "period grace"),  # one of ttl, period and schedule; the last two with grace
    "http": ("http2",),  # not with proxy
}

INTERFACE_EXAMPLE = """
node = { name = "validator-7", version = "v1.4.2" }
services = [
  { id = "ledger", name = "Ledger database", description = "PostgreSQL", status = "Up" },
  { id = "chain", name = "Execution client", description = "Ethereum", status = "Initializing" },
]
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def section(title: str) -> str:
    """A section of the pages of probes."""
    match = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^#|\Z)", PROBES, re.DOTALL | re.MULTILINE)
    assert match, f"no section {title!r}"
    return match[1]


def examples(text: str) -> dict[str, str]:
    """The options of a table with their examples."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| .* \| `(.*)` \|$", text, re.MULTILINE)
    return dict(rows)


def sections_for(scheme: str) -> Iterator[str]:
    """The sections with the options of a scheme."""
    yield next(
        title for title in re.findall(r"^##+ (.*)$", PROBES, re.MULTILINE) if scheme in title.replace(",", " ").split()
    )
    options = options_of(scheme)
    yield from (title for title, option in SHARED.items() if option in options)
    if uses_tls(scheme):
        yield TLS


def uses_tls(scheme: str) -> bool:
    """By its name, which is that of another kind with an s, or by an option."""
    is_tls_variant = scheme == "tls" or (scheme.endswith("s") and scheme.removesuffix("s") in KINDS)
    return is_tls_variant or not options_of(scheme).isdisjoint({"tls", "sslmode"})


def options_of(scheme: str) -> set[str]:
    module, _, name = KINDS[scheme].partition(":")
    kind: Any = getattr(import_module(module), name.split(" ")[0])
    return {field.name for field in dataclasses.fields(kind) if field.init and field.name != "url"}


# ---- configurations


@pytest.fixture(scope="module")
def config_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files in the examples; their absolute paths are replaced by paths in this folder."""
    folder = tmp_path_factory.mktemp("config_folder")
    settings, secrets = folder / "etc" / "svcnode", folder / "run" / "secrets"
    settings.mkdir(parents=True)
    secrets.mkdir(parents=True)
    made = make_certificate(settings)
    (settings / "ca.pem").write_bytes(made.certificate.read_bytes())
    (settings / "svcnode.pem").write_bytes(made.certificate.read_bytes())
    (settings / "svcnode.key").write_bytes(made.key.read_bytes())
    (settings / "bus.creds").write_text(nats_credentials())
    for folder_of_token in (settings, secrets):
        (folder_of_token / "token").write_text("a-token-in-a-file\n")
    (secrets / "etcd-password").write_text("a-password-in-a-file\n")
    (secrets / "partner-url").write_text("https://partner.example.com/health?key=in-a-file\n")
    return folder


def nats_credentials() -> str:
    seed = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode()
    return f"-----BEGIN NATS USER JWT-----\na.b.c\n-----BEGIN USER NKEY SEED-----\n{seed}\n"


def check(config: str, config_folder: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    for prefix in ("/etc/svcnode/", "/run/secrets/"):
        config = config.replace(prefix, f"{config_folder}{prefix}")
    file = folder / "svcnode.toml"
    file.write_text(config)
    environ: Any = {name: f"the-value-of-{name}" for name in re.findall(r"(?<!\$)\$\{(\w+)\}", config)}
    return commands.svcnode(
        "check-config", str(file), folder=folder, **{"RUNTIME_DIRECTORY": "/run/svcnode", **environ}
    )


CONFIGURATIONS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "toml"), start=1)
]


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_every_configuration_in_the_docs_is_valid(config: str, config_folder: Path, tmp_path: Path) -> None:
    ended = check(config, config_folder, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "value-of" not in ended.stdout


# ---- probes


def kinds_table() -> Iterator[tuple[str, str, str]]:
    """Scheme, driver and shared options in the table of kinds."""
    table = re.search(r"^\| scheme \|.*?\n.*?\n(.*?)\n\n", PROBES, re.DOTALL | re.MULTILINE)
    assert table
    for row in table[1].splitlines():
        schemes, _, _, driver, shared = (cell.strip() for cell in row.strip("|").split("|"))
        yield from ((scheme, driver.strip("`"), shared) for scheme in re.findall(r"`([^`]+)`", schemes))


def test_the_table_of_kinds_has_every_scheme_with_its_driver_and_the_shared_options() -> None:
    drivers = {scheme: "".join(re.findall(r"\[(.*)\]", target)) for scheme, target in KINDS.items()}
    assert {scheme: driver for scheme, driver, _ in kinds_table()} == drivers
    labels = {"login": "username", "HTTP": "headers", "reuse": "reuse"}
    for scheme, _, shared in kinds_table():
        assert shared == ", ".join(label for label, option in labels.items() if option in options_of(scheme)), scheme


def test_the_overview_names_every_kind_with_tls() -> None:
    (paragraph,) = re.findall(r"^`tls`, .*?(?=^\n)", OVERVIEW.read_text(), re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([a-z+]+)`", paragraph.partition("They have")[0]))
    not_https = {scheme for scheme in KINDS if uses_tls(scheme) and not scheme.endswith("https")}
    assert named == {*not_https, "https", "sslmode"} - {"postgres", "postgresql"}


@pytest.mark.parametrize("scheme", list(KINDS))
def test_the_section_of_a_kind_has_its_options_and_says_what_is_noticed(scheme: str) -> None:
    title, *common_titles = sections_for(scheme)
    tls_options = set(examples(section(TLS)))
    # A kind without TLS inherits the TLS options and refuses them.
    options = options_of(scheme) - (set() if uses_tls(scheme) else tls_options)
    assert set(examples(section(title))).union(*(examples(section(each)) for each in common_titles)) == options
    noticed = ["Noticed by default", "Noticed with an option", "Not noticed"]
    assert re.findall(r"^\*\*(.*?)\*\*: .+", section(title), re.MULTILINE) == noticed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_kind_of_a_protocol_where_there_is_one(page: Path) -> None:
    """A tcp: probe of a frozen server is ready. Only the section of the kind itself may use any port."""
    ports = {str(port) for entry in CATALOG for port in entry.ports}
    others = r"^## tcp, tls$.*?(?=^## )|^```yaml$.*?^```$"  # YAML is a file of another program
    text = re.sub(others, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [url for url in re.findall(r"tcp://[^\s\"'`]+", text) if url.rpartition(":")[2] in ports] == []


def test_every_example_of_an_option_is_accepted(config_folder: Path, tmp_path: Path) -> None:
    probes = [probe for scheme in KINDS for probe in probes_with_every_example(scheme)]
    ended = check("\n".join(["[security]\nallow_exec = true", *probes]), config_folder, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def probes_with_every_example(scheme: str) -> Iterator[str]:
    options = {name: line for title in sections_for(scheme) for name, line in examples(section(title)).items()}
    separate = [names.split() for names in SEPARATE.get(scheme, ())]
    left_out = {*REFUSED.get(scheme, ()), *(names[0] for names in separate)}
    together = {name: line for name, line in options.items() if name not in left_out}
    url = URLS.get(scheme, f"{scheme}://localhost:8545")
    required = [options[name] for name in REQUIRED.get(scheme, ())]
    others = ([*required, *(options[name] for name in names)] for names in separate)
    for number, lines in enumerate([together.values(), *others]):
        yield "\n".join([f'[[services]]\nid = "{scheme}-{number}"\n[services.probe]\nurl = "{url}"', *lines])


# ---- the command line


def options_of_command(command: str) -> set[str]:
    parser = CommandParser(prog=f"svcnode {command}")
    load_command(command, parser)
    return {name for action in parser._actions for name in action.option_strings}


def command_lines(page: Path) -> Iterator[str]:
    for command in shown_commands(page):
        yield from command.text.split(" && ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_valid(page: Path) -> None:
    for line in command_lines(page):  # also after variables or with a path
        if match := re.match(r"(?:[A-Z_]+=\S+ )*(?:\S+/)?svcnode (?!.*--help)(.*)", line):
            words = shlex.split(match[1], comments=True)
            arguments = build_parser().parse_args(words)  # raises SystemExit if it is invalid
            if words[0] == "probe" and arguments.url:
                scheme = arguments.url.partition(":")[0]
                assert {option.partition("=")[0] for option in arguments.option} <= options_of(scheme), line
    for text in re.findall(r"`svcnode ([a-z-]+\s[^`]*)`", prose(page)):  # may be incomplete
        command, *rest = text.split()
        assert {argument for argument in rest if argument.startswith("-")} <= options_of_command(command), text


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_every_target_of_make_and_every_module_exists(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    lines = [re.sub(r"^([A-Z_]+=\S+ )+", "", line) for line in command_lines(page)]
    shown = [shlex.split(line, comments=True) for line in lines]
    named = [word for program, *words in shown if program == "make" for word in words if "=" not in word]
    assert {*named, *re.findall(r"`make ([a-z-]+)`", prose(page))} <= set(targets)
    for program, *arguments in shown:
        if program.rpartition("/")[2] == "python":
            assert arguments[0] == "-m"
            assert find_spec(arguments[1]), arguments


# ---- README.md, and what a package index shows of it


@pytest.fixture(scope="module")
def description() -> str:
    return ProjectMetadata(str(ROOT), PluginManager()).core.readme


def test_the_description_of_the_package_has_only_absolute_links_and_their_files_exist(description: str) -> None:
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", description)
    assert len(links) == len(re.findall(r"\]\(", readme))
    for mark, link in links:
        if f"]({link})" in readme:  # to another site
            assert link.startswith("https://")
            continue
        before, _, path = link.partition(f"/v{__version__}/")
        assert before == f"{repository}/{'raw' if mark else 'blob'}"
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_a_package_index_can_show_the_pictures_of_the_description(description: str) -> None:
    assert "```mermaid" not in description
    (picture,) = re.findall(r"!\[.+?\]\(.*?(docs/.*)\)", description)
    assert (ROOT / picture).read_bytes().startswith(b"\x89PNG")
    assert (ROOT / picture).stat().st_size < 150_000


def test_make_run_installs_as_few_packages_as_the_pages_say() -> None:
    pins = re.findall(r"^(\w[^\\\n]*)", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    markers = [Requirement(pin).marker for pin in pins]
    count = sum(marker is None or marker.evaluate() for marker in markers) + len(["svcnode"])
    assert count <= 20
    for page in (ROOT / "README.md", ROOT / "docs" / "install.md"):
        assert re.findall(r"(\d+) packages", page.read_text()) == [str(count)], page


# ---- interface.md


def test_the_example_of_the_interface_answers_as_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "interface.md").read_text()
    printed = dict(re.findall(r"^\$ curl .*http://127\.0\.0\.1:8420(\S+)\n(.*)$", text, re.MULTILINE))
    assert len(printed) == 4
    (tmp_path / "svcnode.toml").write_text(INTERFACE_EXAMPLE)
    with Agent(tmp_path, "--listen", "127.0.0.1:0") as agent:
        agent.wait_for_event("started")
        for path, answer in printed.items():
            response = agent.request(path)
            assert (response.body.decode() or str(response.code)) == answer


# ---- configure.md and install.md


def test_the_example_of_a_configuration_error_is_the_printed_one(config_folder: Path, tmp_path: Path) -> None:
    page = ROOT / "docs" / "configure.md"
    (config,) = blocks(page, "toml")
    (error,) = re.findall(r"^svcnode: .*$", page.read_text(), re.MULTILINE)
    ended = check(config.replace('"critical"', '"critcal"'), config_folder, tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.replace(f"{tmp_path}/", "") == f"{error}\n"


def test_the_first_node_answers_as_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    assert re.findall(r"svcnode-([\d.]+)-py3", text) == [__version__]
    printed = dict(re.findall(r"^\$ curl .*http://127\.0\.0\.1:8420(\S+)\n(.*)$", text, re.MULTILINE))
    assert len(printed) == 3
    with Agent(tmp_path, "--listen", "127.0.0.1:0", "--name", "my-host") as agent:
        agent.wait_for_event("node_health", node_health=200)
        for path, answer in printed.items():
            response = agent.request(path)
            assert (response.body.decode() or str(response.code)) == answer


# ---- recipes.md


def test_the_page_of_recipes_shows_the_files_that_the_tests_run() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    shown = re.findall(r"^\[(deploy/recipes/.*)\]\(\.\./\1\):\n\n```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    files = (ROOT / "deploy" / "recipes").iterdir()
    assert dict(shown) == {str(file.relative_to(ROOT)): file.read_text() for file in files}


# ---- coming-from/


# The language of the other tool's file, and where it names what is checked.
THEIR_SERVICES = {
    "consul": ("json", r'"id": "(.+?)"'),
    "gatus": ("yaml", r"^  - name: (.+)$"),
    "sdk": ("go", r'RegisterNewService\("(.+?)"'),
    "uptime-kuma": ("json", r'"name": "(.+?)"'),
}


def test_each_page_for_people_who_come_from_elsewhere_has_their_services_in_our_file() -> None:
    pages = {page.stem: page for page in (ROOT / "docs" / "coming-from").glob("*.md") if page.stem != "README"}
    assert set(pages) == set(THEIR_SERVICES)
    for name, (language, pattern) in THEIR_SERVICES.items():
        theirs, ours = blocks(pages[name], language)[0], tomllib.loads(blocks(pages[name], "toml")[0])
        named = re.findall(pattern, theirs, re.MULTILINE)
        assert len(named) > 2
        assert [service["id"] for service in ours["services"]] == named, name
        for document in blocks(pages[name], "json"):
            json.loads(document)


# ---- architecture.md


def test_every_hop_of_the_architecture_exists() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    hops = re.findall(r"`([\w/]+\.py)` `([\w.]+)`", page)
    assert len(hops) > 15
    for file, name in hops:
        module = import_module("svcnode." + file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)  # raises AttributeError if the page is out of date


@pytest.mark.parametrize("folder", ["src/svcnode", "tests"])
def test_the_tree_for_contributors_has_every_folder(folder: str) -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n{folder}/\n")[2]
    lines = itertools.takewhile(lambda line: line.startswith(" "), tree.splitlines())
    named = {name[1] for line in lines if (name := re.match(r"  ([a-z_]+)/", line))}
    files = (file.relative_to(ROOT / folder) for file in (ROOT / folder).rglob("*") if "__pycache__" not in file.parts)
    assert named == {file.parts[0] for file in files if len(file.parts) > 1}


# ---- questions.md


QUESTIONS = dict(
    re.findall(
        r"^### (.*?)\n(?:(?!^###? ).*\n)*?```sh\n(.*)\n```$", (ROOT / "docs" / "questions.md").read_text(), re.MULTILINE
    )
)
TOKEN = "the-first-token-of-the-node"
OPERATED = """
[node]
name = "validator-7"
[server]
listen = "127.0.0.1:{port}"
drain = "0s"
[security]
operator_token = {{ file = "{folder}/etc/svcnode/token" }}
[notify]
webhook = {{ url = "http://127.0.0.1:{hook}/", quiet_hours = "22:00-07:00" }}
heartbeat = "http://127.0.0.1:{hook}/beat"
heartbeat_interval = "1h"
[defaults]
interval = "200ms"
start_period = "0s"
[[services]]
id = "ledger"
probe = "tcp://127.0.0.1:{closed}"
[[services]]
id = "api"
status = "Up"
[[services]]
id = "backup"
probe = {{ url = "heartbeat:", period = "1d", grace = "2h" }}
"""


class OperatedNode:
    """A node with one service that is Down. Its folder is in place of the root of the file system."""

    def __init__(self, folder: Path, hook: HttpBackend, closed: int) -> None:
        self.folder, self.hook, self.port = folder, hook, free_port()
        for name in ("etc/svcnode", "var/lib/svcnode", "var/backups", "bin"):
            (folder / name).mkdir(parents=True)
        (folder / "etc/svcnode/token").write_text(TOKEN)
        (folder / "svcnode.toml").write_text(
            OPERATED.format(port=self.port, folder=folder, hook=hook.port, closed=closed)
        )
        self.environ = {"STATE_DIRECTORY": f"{folder}/var/lib/svcnode"}
        self.systemctl = folder / "systemctl.log"  # how it was called: systemd does not run here
        (folder / "bin" / "systemctl").write_text(f'#!/bin/sh\necho "$@" > {self.systemctl}\n')
        (folder / "bin" / "systemctl").chmod(0o755)
        self.agent = self.start()

    def start(self) -> Agent:
        agent = Agent(self.folder, environ=self.environ)
        agent.wait_until(lambda: agent.port == self.port and agent.statuses()["ledger"] == "Down")
        return agent

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        command = re.sub(r"(?<= )/(?=etc/|var/)", f"{self.folder}/", command)
        command = command.replace("127.0.0.1:8420", f"127.0.0.1:{self.port}")
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{self.hook.port}")
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return run_command(["sh", "-c", command], self.folder, **self.environ, PATH=path)

    def details(self, token: str | None = None) -> Any:
        """All services by id, and the node with the id None; None if the token is refused."""
        headers = {"Authorization": f"Bearer {token or (self.folder / 'etc/svcnode/token').read_text().strip()}"}
        code, document = http_request(self.port, "/details", headers=headers)
        if code != 200:
            return None
        return {None: document["node"], **{one["id"]: one for one in document["services"]}}

    def history(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.run("svcnode history --json").stdout)["items"]
        return items


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedNode]:
    provision.program("sqlite3", "sqlite3")
    with HttpBackend(http_response(200, "OK")) as hook, closed_port() as closed:
        node = OperatedNode(tmp_path_factory.mktemp("operated"), hook, closed)
        yield node
        node.agent.__exit__()


def notices_a_standstill(node: OperatedNode, command: str) -> bool:
    """The check of the answer's configuration fails if the newest block is old, and only then."""
    page = (ROOT / "docs" / "questions.md").read_text().partition("### My chain client")[2]
    file, ended = node.folder / "chain.toml", []
    for age_s in (0, 600):
        with HttpBackend(respond_as("ethereum", age_s=age_s)) as client:
            file.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0].replace(":8545", f":{client.port}"))
            ended.append(node.run(f"{command} --config {file}").returncode)
    return ended == [0, 3]


def pages_later(node: OperatedNode, command: str) -> bool:
    """With the answer's configuration, the chat gets the problem at once, and the pager after five minutes."""
    page = (ROOT / "docs" / "questions.md").read_text().partition("### How do I get paged only")[2]
    file = node.folder / "pager.toml"
    file.write_text(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    chat, pager = node.run(f"{command} --config {file}").stdout.splitlines()
    return "5m" not in chat and "5m" in pager


def rotates_the_token(node: OperatedNode, command: str) -> bool:
    before = (node.folder / "etc/svcnode/token").read_text()
    return node.run(command).returncode == 0 and node.details(before) is None and node.details() is not None


def backs_up(node: OperatedNode, command: str) -> bool:
    return node.run(command).returncode == 0 and (node.folder / "var/backups/history.db").exists()


def restores(node: OperatedNode, command: str) -> bool:
    """What was noted before the backup is there again, after all of the history was lost."""
    node.run("svcnode note before")
    node.run(QUESTIONS["How do I back up the history?"])
    node.run("svcnode note after")
    assert node.agent.stop() == 0
    assert not (node.folder / "var/lib/svcnode/nodes/validator-7/history.db-wal").exists()
    assert node.run(command).returncode == 0
    node.agent.__exit__()
    node.agent = node.start()
    reasons = [item["reason"] or "" for item in node.history() if item["kind"] == "note"]
    return "before" in " ".join(reasons) and "after" not in " ".join(reasons)


def runs_two_nodes(node: OperatedNode, command: str) -> bool:
    """As the unit does: each with its own file and folders, at the same time."""
    assert node.run(command).returncode == 0
    option, now, *units = node.systemctl.read_text().split()
    names = [re.sub(r"svcnode@(.*)\.service", r"\1", unit) for unit in units]
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(instance(node.folder, name)) for name in names]
        answered = [agent.request("/svc/node").json["node_name"] for agent in agents]
    return (option, now, answered) == ("enable", "--now", ["validator-7", "validator-8"])


def instance(root: Path, name: str) -> Agent:
    """The node of svcnode@NAME.service, below this root."""
    unit = parse_unit((ROOT / "deploy" / "systemd" / "svcnode@.service").read_text().replace("%i", name))
    (command,), (state,), (runtime,) = unit["ExecStart"], unit["StateDirectory"], unit["RuntimeDirectory"]
    _, serve, option, file = command.split()
    assert (serve, option, file) == ("serve", "--config", f"/etc/svcnode/{name}.toml")
    Path(f"{root}{file}").write_text(
        f'[node]\nname = "{name}"\n[server]\nlisten = "127.0.0.1:0"\n[[services]]\nid = "a"\nstatus = "Up"\n'
    )
    environ = {"STATE_DIRECTORY": f"{root}/var/lib/{state}", "RUNTIME_DIRECTORY": f"{root}/run/{runtime}"}
    for folder in environ.values():
        Path(folder).mkdir(parents=True)
    return Agent(root, option, f"{root}{file}", environ=environ)


# What is true after the command of a question was run.
ANSWERS: dict[str, Callable[[OperatedNode, str], bool]] = {
    "Why does the node answer 206?": lambda node, command: node.run(command).returncode == 1,
    "Why is this service Down?": lambda node, command: node.run(command).returncode == 3,
    "My chain client stands still. Why is the node not 503?": notices_a_standstill,
    "How do I put a service into maintenance, so that nobody is woken?": lambda node, command: (
        node.run(command).returncode == 0 and node.details()["ledger"]["maintenance"]["source"] == "control"
    ),
    "How do I plan maintenance for tonight?": lambda node, command: (
        node.run(command).returncode == 0 and node.details()["ledger"]["planned_maintenance"] is not None
    ),
    "I am already on it. How do I stop the reminders?": lambda node, command: (
        node.run(command).returncode == 0 and node.details()["ledger"]["acknowledged"]["by"].startswith("alice")
    ),
    "How do I take this machine out of the load balancer?": lambda node, command: (
        node.run(command).returncode == 0 and node.agent.health() == 503 and node.details()[None]["draining"]
    ),
    "What happened since 22:00 UTC last night?": lambda node, command: "ledger" in node.run(command).stdout,
    "How available were we this month?": lambda node, command: (
        "ledger" in [row["id"] for row in csv.DictReader(node.run(command).stdout.splitlines())]
    ),
    "How do I remember later what we changed?": lambda node, command: (
        node.run(command).returncode == 0 and "note" in [item["kind"] for item in node.history()]
    ),
    "How do I get no pages at night?": lambda node, command: "22:00" in node.run(command).stdout,
    "How do I get paged only if it lasts five minutes?": pages_later,
    "How do I know that alerts would arrive?": lambda node, command: (
        node.run(command).returncode == 0 and "POST" in [request.method for request in node.hook.requests]
    ),
    "Who monitors the monitor?": lambda node, command: (
        node.run(command).returncode == 0 and node.hook.last_request.target == "/beat"
    ),
    "How do I get warned when a service is slow?": lambda node, command: node.run(command).returncode == 0,
    "How do I learn that a nightly job did not run?": lambda node, command: (
        node.run(command).returncode == 0 and node.details()["backup"]["status"] == "Up"
    ),
    "How do I change the configuration without a restart?": lambda node, command: (
        node.run(command).returncode == 0 and "reloaded" in [item["kind"] for item in node.history()]
    ),
    "How do I rotate the token?": rotates_the_token,
    "How do I upgrade?": lambda node, command: (
        node.run(command).returncode == 0 and node.systemctl.read_text() == "restart svcnode\n"
    ),
    "How do I run two nodes on one machine?": runs_two_nodes,
    "How do I back up the history?": backs_up,
    "How do I restore the history?": restores,
    "How much memory and CPU does it need?": lambda node, command: (
        "process_resident_memory_bytes" in node.run(command).stdout
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_command_of_a_question_does_what_the_answer_says(question: str, operated: OperatedNode) -> None:
    assert ANSWERS[question](operated, QUESTIONS[question])


def test_each_question_has_one_command() -> None:
    text = (ROOT / "docs" / "questions.md").read_text()
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == list(QUESTIONS) == list(ANSWERS)
    assert [command.text for command in shown_commands(ROOT / "docs" / "questions.md")] == list(QUESTIONS.values())


# ---- links


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    of_headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return of_headings | set(re.findall(r'<a id="(.*?)">', page.read_text()))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_every_link_file_and_variable_of_a_page_exists_and_its_python_compiles(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
    folders = "docs|tests|src|examples|deploy|benchmarks|scripts|requirements"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)[`:]", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
    if page in PAGES:
        variables = set(re.findall(r"\b(SVCNODE_[A-Z_]+[A-Z])\b", page.read_text()))
        assert variables <= {*environment_keys(), "SVCNODE_CONFIG", "SVCNODE_CONTROL", SERVICES_VARIABLE}
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


def test_every_page_that_the_code_names_exists() -> None:
    for folder in ("src", "tests", "benchmarks", "examples", "deploy"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".yml", ".toml", ".txt"}:
                for path in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(errors="ignore")):
                    assert (ROOT / path).exists(), f"{file}: {path}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, pending = set(), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose(page))
        pending += [(page.parent / link).resolve() for link in links]
    assert set(ALL_PAGES) <= reached


def test_every_promise_of_the_security_page_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"(?m)^\| (.+) \| (.*`tests/.*) \|$", page.partition("## Who can read what")[0])
    assert len(rows) > 10
    for promise, tests in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{promise}: {file} has no {name}"
