"""The examples of the documentation work, and the documentation has every option and key."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints, is_typeddict

import nkeys  # type: ignore[import-untyped]
import pytest

from svcnode.cli import COMMANDS, build_parser, load_command
from svcnode.cli._args import CommandParser
from svcnode.config.schema import FileTable, ServiceTable
from svcnode.discovery.catalog import CATALOG
from svcnode.probes import KINDS
from tests.support.certificates import make_certificate
from tests.support.processes import DEADLINE_S
from tests.truth import timing
from tests.truth.faults import FAULT_NAMES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OVERVIEW = ROOT / "docs" / "probes" / "README.md"
PROBES = "\n".join(page.read_text() for page in sorted(OVERVIEW.parent.glob("*.md")))
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
# The shortest valid URL of kinds without a host.
URLS = {
    "disk": "disk:/var/lib",
    "exec": "exec:",
    "file": "file:/run/app/done",
    "heartbeat": "heartbeat:",
    "redis+sentinel": "redis+sentinel://localhost/mymaster",
    "sqlite": "sqlite:/var/lib/ledger.db",
}
TLS = "Options of TLS"
HTTP = "Options of HTTP"
# Tables of options that kinds share, and an option that only these kinds have.
SHARED = {HTTP: "headers", "Options of connections": "reuse", "Options of logging in": "username"}
# Options that a kind inherits and refuses.
REFUSED = {"etcd": {"bearer"}, "postgres": {"min_cert_days"}, "postgresql": {"min_cert_days"}}
REQUIRED = {"mariadb": ("username",), "mysql": ("username",)}
# Options that cannot be combined with the other ones, such as a token with a user name.
SEPARATE = {
    "mariadb": ("write",),
    "mysql": ("write",),
    "nats": ("token", "credentials_file"),
    "postgres": ("write",),
    "postgresql": ("write",),
    "disk": ("read_only",),
    "http": ("http2",),  # not with proxy
}


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
    (settings / "bus.creds").write_text(nats_credentials())
    (secrets / "token").write_text("a-token-in-a-file\n")
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
    secrets = {name: f"the value of {name}" for name in re.findall(r"(?<!\$)\$\{(\w+)\}", config)}
    return subprocess.run(
        [sys.executable, "-m", "svcnode", "check-config", str(file)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **secrets},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


CONFIGURATIONS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "toml"), start=1)
]


def test_the_pages_have_configurations() -> None:
    assert len(CONFIGURATIONS) > 15


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_every_configuration_in_the_docs_is_valid(config: str, config_folder: Path, tmp_path: Path) -> None:
    ended = check(config, config_folder, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "value of" not in ended.stdout


# ---- probes


def test_the_table_of_kinds_has_every_scheme() -> None:
    table = re.search(r"^\| scheme \|.*?\n.*?\n(.*?)\n\n", PROBES, re.DOTALL | re.MULTILINE)
    assert table
    schemes = [scheme for row in table[1].splitlines() for scheme in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(schemes) == sorted(KINDS)


@pytest.mark.parametrize("scheme", list(KINDS))
def test_the_options_of_a_kind_are_those_of_its_tables(scheme: str) -> None:
    own, *common = (set(examples(section(title))) for title in sections_for(scheme))
    tls_options = set(examples(section(TLS)))
    # A kind without TLS inherits the TLS options and refuses them.
    options = options_of(scheme) - (set() if uses_tls(scheme) else tls_options)
    assert own.union(*common) == options


NOTICED = ("Noticed by default", "Noticed with an option", "Not noticed")


@pytest.mark.parametrize("scheme", list(KINDS))
def test_the_section_of_a_kind_says_what_is_noticed(scheme: str) -> None:
    title, *_ = sections_for(scheme)
    assert re.findall(r"^\*\*(.*?)\*\*: .+", section(title), re.MULTILINE) == list(NOTICED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_kind_of_a_protocol_where_there_is_one(page: Path) -> None:
    """A tcp: probe of a frozen server is ready. Only the section of the kind itself may use any port."""
    ports = {str(port) for entry in CATALOG for port in entry.ports}
    text = re.sub(r"^## tcp, tls$.*?(?=^## )", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [url for url in re.findall(r"tcp://[^\s\"'`]+", text) if url.rpartition(":")[2] in ports] == []


def test_every_example_of_an_option_is_accepted(config_folder: Path, tmp_path: Path) -> None:
    probes = [probe for scheme in KINDS for probe in probes_with_every_example(scheme)]
    ended = check("\n".join(["[security]\nallow_exec = true", *probes]), config_folder, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def probes_with_every_example(scheme: str) -> Iterator[str]:
    options = {name: line for title in sections_for(scheme) for name, line in examples(section(title)).items()}
    separate = SEPARATE.get(scheme, ())
    together = {name: line for name, line in options.items() if name not in (*REFUSED.get(scheme, ()), *separate)}
    url = URLS.get(scheme, f"{scheme}://localhost:8545")
    required = [options[name] for name in REQUIRED.get(scheme, ())]
    for number, lines in enumerate([together.values(), *([*required, options[name]] for name in separate)]):
        yield "\n".join([f'[[services]]\nid = "{scheme}-{number}"\n[services.probe]\nurl = "{url}"', *lines])


@pytest.mark.parametrize(("scheme", "option"), [(scheme, option) for scheme in REFUSED for option in REFUSED[scheme]])
def test_an_option_that_a_kind_does_not_accept_is_refused(
    scheme: str, option: str, config_folder: Path, tmp_path: Path
) -> None:
    (line,) = (examples(section(title))[option] for title in (TLS, HTTP) if option in examples(section(title)))
    probe = f'[[services]]\nid = "x"\n[services.probe]\nurl = "{scheme}://monitor@localhost"\n{line}'
    ended = check(probe, config_folder, tmp_path)
    assert ended.returncode == 2
    assert f"services.x.probe.{option}: " in ended.stderr
    assert f"`{option}`" in next(section(title) for title in sections_for(scheme))


def test_the_table_of_drivers_has_every_extra() -> None:
    table = re.search(r"^\| kinds \| install \|.*?\n\n", PROBES, re.DOTALL | re.MULTILINE)
    assert table
    rows = re.findall(r'^\| (`.*`) \| `pip install "svcnode\[(\w+)\]"` \|$', table[0], re.MULTILINE)
    extras = {scheme: re.findall(r"\[(.*)\]", target) for scheme, target in KINDS.items()}
    assert {scheme: [extra] for schemes, extra in rows for scheme in re.findall("`(.*?)`", schemes)} == {
        scheme: extra for scheme, extra in extras.items() if extra
    }


def test_the_login_options_name_every_kind_with_a_login() -> None:
    first_sentence, *_ = re.split(r"\.\s", section("Options of logging in"))
    assert sorted(re.findall("`(.*?)`", first_sentence)) == [
        scheme for scheme in sorted(KINDS) if "username" in options_of(scheme)
    ]


def test_the_example_of_a_third_party_kind_works(tmp_path: Path) -> None:
    (block,) = blocks(OVERVIEW, "python")
    (entry_point,) = re.findall(r'^load = "my_package\.load:(\w+)"$', PROBES, re.MULTILINE)
    (example,) = re.findall(r"`probe = (\{ url = \"load:\", .*? \})`", prose(OVERVIEW), re.DOTALL)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "load.py").write_text(block)
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[svcnode.probes]\nload = my_package.load:{entry_point}\n")
    (tmp_path / "svcnode.toml").write_text(f'[[services]]\nid = "host"\nprobe = {example}\n')

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "svcnode", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    ended = run("check-config")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert run("probe", "load:", "-o", "limit=1e9").returncode == 0
    assert run("probe", "load:", "-o", "limit=0.0").returncode == 1


# ---- the command line


def command_parser(command: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=f"svcnode {command}")
    load_command(command, parser)
    return parser


def options_of_command(command: str) -> set[str]:
    return {name for action in command_parser(command)._actions for name in action.option_strings}


def whole_commands() -> Iterator[Any]:
    """The commands in code blocks."""
    for page in PAGES:
        for block in (*blocks(page, "console"), *blocks(page, "sh")):
            for line in re.findall(r"^(?:\$ )?svcnode (.*)$", block, re.MULTILINE):
                yield pytest.param(shlex.split(line, comments=True), id=f"{page.name}: {line}")


def mentioned_commands() -> Iterator[Any]:
    """The commands in the text, which may be incomplete."""
    for page in PAGES:
        for text in re.findall(r"`svcnode ([a-z-]+\s[^`]*)`", prose(page)):
            yield pytest.param(text.split(), id=f"{page.name}: {' '.join(text.split())}")


@pytest.mark.parametrize("command_line", list(whole_commands()))
def test_every_command_in_a_code_block_is_valid(command_line: list[str]) -> None:
    arguments = build_parser().parse_args(command_line)  # raises SystemExit if it is invalid
    if command_line[0] == "probe":
        scheme = arguments.url.partition(":")[0]
        assert {option.partition("=")[0] for option in arguments.option} <= options_of(scheme)


@pytest.mark.parametrize("command_line", list(mentioned_commands()))
def test_every_command_in_the_text_has_known_options(command_line: list[str]) -> None:
    command, *rest = command_line
    assert {argument for argument in rest if argument.startswith("-")} <= options_of_command(command)


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_the_reference_has_every_option_of_every_command(command: str) -> None:
    table = re.search(rf"^\| `svcnode {command}.*?\n\n", REFERENCE, re.DOTALL | re.MULTILINE)
    assert table
    assert set(re.findall(r"`(-[\w-]+)", table[0])) == options_of_command(command) - {"-h", "--help"}


# ---- the reference of the configuration


def single_keys(table: Any, name: str = "") -> Iterator[str]:
    for key, hint in get_type_hints(table).items():
        if is_typeddict(hint):
            yield from single_keys(hint, f"{name}.{key}" if name else key)
        elif name and name != "defaults":  # defaults has one row for all keys
            yield f"| `[{name}] {key}` |"


def missing_from_the_reference(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if text not in REFERENCE]


def test_the_reference_has_every_key_of_the_file() -> None:
    assert missing_from_the_reference(single_keys(FileTable)) == []
    assert missing_from_the_reference(f"`{key}`" for key in get_type_hints(ServiceTable)) == []
    (defaults,) = re.findall(r"^\| `\[defaults\] …` .*$", REFERENCE, re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+)`", defaults)) == set(get_type_hints(get_type_hints(FileTable)["defaults"]))


# ---- the campaign


def test_the_page_about_the_truth_campaign_has_its_bounds_and_faults() -> None:
    page = (ROOT / "docs" / "truth.md").read_text()
    listed = re.findall(r"^\| .* \| (\d+) \| .* \| (\d+\.\d\d) s \|$", page, re.MULTILINE)
    refused, hung, not_ready, ready = timing.REFUSED_S, timing.HUNG_S, timing.NOT_READY_S, timing.READY_S
    checks = (timing.FALL, timing.FALL, 1, timing.RISE, 2 * timing.MAX_FAILURES + 2, timing.MAX_FAILURES + 1, 1)
    times_s = (refused, hung, not_ready, ready, timing.EVERY_SECOND_S, timing.CRASH_LOOP_S, timing.RELIABLE_S)
    assert listed == [(str(count), f"{time_s:.2f}") for count, time_s in zip(checks, times_s, strict=True)]
    table = re.search(r"^\| condition \|.*?\n.*?\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    assert table
    assert [row.split(" | ")[0].removeprefix("| ") for row in table[1].splitlines()] == list(FAULT_NAMES)


# ---- links


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_promise_of_the_security_page_names_tests_that_exist() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"(?m)^\| (.+) \| (.*`tests/.*) \|$", page.partition("## Who can read what")[0])
    assert len(rows) > 10
    for promise, tests in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{promise}: {file} has no {name}"
