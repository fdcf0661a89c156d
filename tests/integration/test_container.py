"""The files in deploy/container, as far as no image is needed. tests/deploy/test_image.py builds it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from svcnode.cli import build_parser
from tests.support import commands
from tests.support.processes import DEADLINE_S
from tests.support.servers.prometheus import promtool
from tests.support.servers.provision import python_environment

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
COMPOSE: Any = yaml.safe_load((FOLDER / "compose.yaml").read_text())
NODE = COMPOSE["services"]["node"]
DEFAULT = tomllib.loads((FOLDER / "svcnode.toml").read_text())
KUBERNETES: Any = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "deployment.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^#.*\n", "", (FOLDER / "Containerfile").read_text()).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def values(word: str) -> list[str]:
    """Of the last stage, which becomes the image."""
    found = instructions()
    last_stage = max(index for index, (each, _) in enumerate(found) if each == "FROM")
    return [value for each, value in found[last_stage:] if each == word]


def environ() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(values("ENV"))))


# ---- the image


def test_everything_that_is_downloaded_has_a_hash() -> None:
    commands = [
        part for word, value in instructions() if word == "RUN" for part in value.split("&&") if "/pip " in part
    ]
    assert len(commands) == 4
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command
        assert not re.search(r"pip wheel(?!.*--no-build-isolation)", command), "it would fetch what has no hash"
    for name in re.findall(r"-r (\S+)", " ".join(commands)):
        pins = re.split(r"(?m)^(?=\S)", (ROOT / name).read_text())[1:]
        assert len(pins) > 5
        assert all("--hash=sha256:" in pin for pin in pins if not pin.startswith("#"))


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    program = python_environment(ROOT / "requirements" / "hadolint.txt") / "bin" / "hadolint"
    return subprocess.run([str(program), str(file)], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def test_hadolint_accepts_the_containerfile(tmp_path: Path) -> None:
    accepted = lint(FOLDER / "Containerfile")
    assert (accepted.returncode, accepted.stdout) == (0, "")
    wrong = tmp_path / "Containerfile"
    wrong.write_text((FOLDER / "Containerfile").read_text() + "RUN cd /tmp\n")
    assert lint(wrong).returncode == 1


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    included = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copies = [value.split()[:-1] for word, value in instructions() if word == "COPY" and "--from" not in value]
    sources = [source for copy in copies for source in copy if not source.startswith("--")]
    assert sorted(included) == sorted(sources)
    assert all((ROOT / source).exists() for source in sources)


def test_user_commands_port_and_configuration_of_the_image_fit(tmp_path: Path) -> None:
    (user,), (entrypoint,), (command,), (healthcheck,) = map(values, ("USER", "ENTRYPOINT", "CMD", "HEALTHCHECK"))
    context = KUBERNETES["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert json.loads(entrypoint) == ["svcnode"]
    build_parser().parse_args(json.loads(command))
    assert json.loads(healthcheck.partition("CMD ")[2]) == ["svcnode", "ping"], "never node health"
    assert values("VOLUME") == [environ()["STATE_DIRECTORY"]]
    copied = f"deploy/container/svcnode.toml {environ()['SVCNODE_CONFIG']}"
    assert f"--chmod=644 {copied}" in values("COPY"), "the node can read it, whatever its mode in the checkout is"
    assert [DEFAULT["server"]["listen"]] == [f"0.0.0.0:{port}" for port in values("EXPOSE")]
    assert DEFAULT["node"]["name"], "the history of a node belongs to its name, and the name of a container changes"
    assert check_config(FOLDER / "svcnode.toml", tmp_path) == (0, "")
    assert (NODE["read_only"], NODE["cap_drop"], NODE["image"]) == (True, ["ALL"], "svcnode:latest")
    assert f"state:{environ()['STATE_DIRECTORY']}" in NODE["volumes"]
    assert f"./config:{Path(environ()['SVCNODE_CONFIG']).parent}:ro" in NODE["volumes"]


def check_config(file: Path, folder: Path) -> tuple[int, str]:
    ended = commands.svcnode("check-config", str(file), folder=folder)
    return ended.returncode, ended.stderr


# ---- the compose file


def schema_errors(file: Path) -> str:
    program = python_environment(ROOT / "requirements" / "compose.txt") / "bin" / "check-jsonschema"
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_the_compose_file_is_valid(tmp_path: Path) -> None:
    assert schema_errors(FOLDER / "compose.yaml") == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("cap_drop: [ALL]", "cap_dorp: [ALL]"))
    assert "cap_dorp" in schema_errors(wrong)


def test_the_configuration_of_the_compose_file_is_valid(tmp_path: Path) -> None:
    text = (FOLDER / "config" / "svcnode.toml").read_text()
    read = tomllib.loads(text)
    files = [read["security"]["operator_token"]["file"], read["services"][0]["probe"]["password"]["file"]]
    assert files == [f"/run/secrets/{name}" for name in NODE["secrets"]]
    for name in NODE["secrets"]:
        (tmp_path / name).write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "svcnode.toml").write_text(text.replace("/run/secrets", str(tmp_path)))
    assert check_config(tmp_path / "svcnode.toml", tmp_path) == (0, "")
    assert f"@{next(name for name in COMPOSE['services'] if name.startswith('postgres'))}:" in text
    assert f'/{COMPOSE["services"]["postgresql"]["environment"]["POSTGRES_DB"]}"' in text


def test_prometheus_accepts_its_configuration_and_reads_the_node(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "prometheus" / "svcnode-rules.yml", tmp_path)
    code, output = promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yml"))
    assert code == 0, output
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"node:{DEFAULT['server']['listen'].rpartition(':')[2]}"]}]
