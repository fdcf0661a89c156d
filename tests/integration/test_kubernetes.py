"""The manifests in deploy/kubernetes: valid for three versions of Kubernetes, consistent, and true to the node."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import descendants, wait_until
from tests.support.servers.provision import python_environment, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
PINS = ROOT / "requirements" / "kubernetes.txt"
VERSIONS = ("1.31", "1.34", "1.37")
MANIFESTS: dict[str, Any] = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))}
KUSTOMIZATION = MANIFESTS.pop("kustomization")
WITHOUT_SCHEMA = {"servicemonitor"}  # its kind is defined by the Prometheus Operator
INSTALL = ROOT / "docs" / "install.md"
DEPLOYMENTS = ("deployment", "sidecar")
CONFIG_FOLDER, SECRETS_FOLDER = "/etc/svcnode", "/etc/svcnode-secrets"
SECRETS = {"operator-token": "0123456789abcdef0123", "ledger-password": "let-me-in"}


def pod(name: str) -> Any:
    return MANIFESTS[name]["spec"]["template"]["spec"]


def container(deployment: str, name: str) -> Any:
    containers = pod(deployment)["containers"] + pod(deployment).get("initContainers", [])
    (found,) = (each for each in containers if each["name"] == name)
    return found


# ---- schemas

# Prints the errors of the manifests in stdin, as a JSON list.
VALIDATE = """
import json, sys
import kubernetes_validate

def error(manifest, version):
    try:
        used = kubernetes_validate.validate(manifest, version, strict=True)
    except Exception as exc:
        return [f"{manifest['kind']} {version}: {exc.message}"]
    return [] if used == version else [f"no schemas of {version}"]

manifests = json.load(sys.stdin)
print(json.dumps([text for version in sys.argv[1:] for each in manifests for text in error(each, version)]))
"""


def schema_errors(manifests: list[Any], *versions: str) -> list[str]:
    python = python_environment(PINS) / "bin" / "python"
    command = [str(python), "-W", "ignore", "-c", VALIDATE, *versions]
    ended = subprocess.run(
        command, input=json.dumps(manifests), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    errors: list[str] = json.loads(ended.stdout)
    return errors


def test_the_manifests_are_valid_for_three_versions_of_kubernetes() -> None:
    assert schema_errors([MANIFESTS[name] for name in MANIFESTS if name not in WITHOUT_SCHEMA], *VERSIONS) == []
    misspelled = json.loads(json.dumps(MANIFESTS["deployment"]).replace("livenessProbe", "livelinessProbe"))
    assert len(schema_errors([misspelled], VERSIONS[0])) == 1


# ---- consistency


def test_selectors_ports_mounts_and_tokens_of_the_manifests_agree() -> None:
    specs = {name: manifest.get("spec", {}) for name, manifest in MANIFESTS.items()}
    labels = specs["deployment"]["template"]["metadata"]["labels"]
    assert specs["service"]["selector"].items() <= labels.items()
    assert specs["networkpolicy"]["podSelector"]["matchLabels"].items() <= labels.items()
    for name in DEPLOYMENTS:
        assert specs[name]["selector"]["matchLabels"] == specs[name]["template"]["metadata"]["labels"]
    (port,) = container("deployment", "svcnode")["ports"]
    (service_port,) = specs["service"]["ports"]
    (policy_port,) = specs["networkpolicy"]["ingress"][0]["ports"]
    (endpoint,) = specs["servicemonitor"]["endpoints"]
    assert {service_port["targetPort"], policy_port["port"], endpoint["port"], service_port["name"]} == {port["name"]}
    assert config().count(f'listen = "0.0.0.0:{port["containerPort"]}"') == 1
    volumes = {volume["name"]: volume for volume in pod("deployment")["volumes"]}
    for name in ("svcnode", "reload"):
        mounts = {mount["name"]: mount for mount in container("deployment", name)["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        assert not any("subPath" in mount for mount in mounts.values()), "it would never be updated"
        assert (mounts["config"]["mountPath"], mounts["secrets"]["mountPath"]) == (CONFIG_FOLDER, SECRETS_FOLDER)
    assert volumes["config"]["configMap"]["name"] == MANIFESTS["configmap"]["metadata"]["name"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == volumes["secrets"]["secret"]["secretName"]
    assert f'operator_token = {{ file = "{SECRETS_FOLDER}/{credentials["key"]}" }}' in config()
    (drain_s,) = re.findall(r'drain = "(\d+)s"', config())
    assert pod("deployment")["terminationGracePeriodSeconds"] > int(drain_s) + 30
    assert pod("sidecar")["terminationGracePeriodSeconds"] > 30
    listed = {name.removesuffix(".yaml") for name in KUSTOMIZATION["resources"]}
    assert listed == set(MANIFESTS) - {"sidecar", "servicemonitor"}


def test_the_documented_secret_has_every_key_that_the_configuration_reads() -> None:
    (command,) = re.findall(r"^kubectl create secret generic (.*)$", INSTALL.read_text(), re.MULTILINE)
    name, *literals = command.split()
    (volume,) = (volume for volume in pod("deployment")["volumes"] if volume["name"] == "secrets")
    assert name == volume["secret"]["secretName"]
    keys = {literal.split("=")[1] for literal in literals}
    assert keys == set(re.findall(rf'file = "{SECRETS_FOLDER}/(.+?)"', config()))


def test_a_pod_that_drains_gets_no_traffic_but_can_be_asked_for_its_health_and_is_scraped_once() -> None:
    traffic, health = MANIFESTS["service"], MANIFESTS["health-service"]
    assert "publishNotReadyAddresses" not in traffic["spec"]
    assert (health["spec"]["publishNotReadyAddresses"], health["spec"]["clusterIP"]) == (True, "None")
    assert all(health["spec"][key] == traffic["spec"][key] for key in ("selector", "ports"))
    wanted = MANIFESTS["servicemonitor"]["spec"]["selector"]["matchLabels"].items()
    assert [wanted <= service["metadata"]["labels"].items() for service in (traffic, health)] == [False, True]


def test_the_sidecars_are_the_containers_of_the_deployment_around_the_program() -> None:
    """They start before it and end after it, when no Service has the pod any more: then there is nothing to drain."""
    assert [each["name"] for each in pod("sidecar")["initContainers"]] == ["svcnode", "reload"]
    assert pod("sidecar")["initContainers"][0]["startupProbe"], "the program starts when the node answers"
    for name in ("svcnode", "reload"):
        sidecar, alone = dict(container("sidecar", name)), dict(container("deployment", name))
        assert sidecar.pop("restartPolicy") == "Always"
        assert sidecar.pop("env") == [*alone.pop("env"), {"name": "SVCNODE_SERVER_DRAIN", "value": "0s"}]
        assert sidecar == alone
    assert pod("sidecar")["volumes"] == pod("deployment")["volumes"]


def test_the_containers_have_no_privileges() -> None:
    assert pod("deployment")["securityContext"]["runAsNonRoot"] is True
    for name in ("svcnode", "reload"):
        assert container("deployment", name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


# ---- the node, with the configuration and the probes of the manifests


def config() -> str:
    text: str = MANIFESTS["configmap"]["data"]["svcnode.toml"]
    return text


class Volume:
    """A volume of a ConfigMap or a Secret as kubelet writes it: files are links to ..data, which is replaced."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        self._version = 0
        folder.mkdir()
        self.write(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def write(self, files: dict[str, str]) -> None:
        self._version += 1
        version = self.folder / f"..version-{self._version}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_text(content)
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")


def local(text: str, folder: Path) -> str:
    """With the folders of the test instead of those in the container, and any free port."""
    text = text.replace(SECRETS_FOLDER, f"{folder}/secrets").replace(CONFIG_FOLDER, f"{folder}/config")
    return text.replace(":8420", ":0").replace("ledger:5432", "127.0.0.1:1").replace("sleep 5", "sleep 0.1")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    Volume(tmp_path / "secrets", SECRETS)
    return Volume(tmp_path / "config", {"svcnode.toml": local(config(), tmp_path)})


def environ(folder: Path) -> dict[str, str]:
    for each in container("deployment", "svcnode")["env"]:
        (folder / each["name"]).mkdir(exist_ok=True)
    return {each["name"]: f"{folder}/{each['name']}" for each in container("deployment", "svcnode")["env"]}


@contextmanager
def running_node(folder: Path) -> Iterator[Agent]:
    program, subcommand, *arguments = container("deployment", "svcnode")["command"]
    assert (program, subcommand) == ("svcnode", "serve")
    arguments = [local(argument, folder) for argument in arguments]
    with Agent(folder, *arguments, environ=environ(folder)) as agent:
        agent.wait_for_event("started")
        yield agent


def get(agent: Agent, path: str, **headers: str) -> int:
    """As kubelet and Prometheus do: to an address of the pod that is not the one of its loopback name."""
    connection = http.client.HTTPConnection("127.0.0.2", agent.port, timeout=DEADLINE_S)
    connection.request("GET", path, headers={"Host": f"10.0.0.7:{agent.port}", **headers})
    code = connection.getresponse().status
    connection.close()
    return code


def probe(agent: Agent, name: str) -> int:
    return get(agent, container("deployment", "svcnode")[name]["httpGet"]["path"])


def test_a_failed_service_makes_the_pod_not_ready_and_never_restarts_it(volume: Volume, tmp_path: Path) -> None:
    with running_node(tmp_path) as agent:
        assert probe(agent, "startupProbe") == 200
        assert probe(agent, "readinessProbe") == 200, "206 is ready"
        (endpoint,) = MANIFESTS["servicemonitor"]["spec"]["endpoints"]
        token = SECRETS[endpoint["authorization"]["credentials"]["key"]]
        assert get(agent, endpoint["path"]) == 401
        assert get(agent, endpoint["path"], Authorization=f"{endpoint['authorization']['type']} {token}") == 200
        volume.write({"svcnode.toml": local(config(), tmp_path) + '[defaults]\nstart_period = "0s"\nfall = 1\n'})
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: get(agent, "/svc/node/health") == 503)
        assert probe(agent, "readinessProbe") == 503
        assert probe(agent, "livenessProbe") == 200
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        assert probe(agent, "livenessProbe") == 200


@contextmanager
def reloading(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The container that reloads. Its shell is process 1, as in a container."""
    shell, *arguments = container("deployment", "reload")["command"] + container("deployment", "reload")["args"]
    command = ["unshare", "--pid", "--fork", "--kill-child", shell, *(local(each, folder) for each in arguments)]
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.Popen(command, env={"PATH": paths, "HOME": str(folder), **environ(folder)})
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def test_a_change_of_the_config_map_reloads_the_node(volume: Volume, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    good = local(config(), tmp_path)
    with running_node(tmp_path) as agent, reloading(tmp_path) as process:
        agent.wait_for_event("reloaded")
        volume.write({"svcnode.toml": good + '[[services]]\nid = "cache"\nprobe = "redis://127.0.0.1:1"\n'})
        agent.wait_for_event("reloaded", added=1)
        volume.write({"svcnode.toml": "[[services]]\nid = 5\n"})
        agent.wait_for_event("reload_failed")
        assert list(agent.statuses()) == ["ledger", "cache"]
        volume.write({"svcnode.toml": good})
        agent.wait_for_event("reloaded", removed=1)
        (shell,) = [each for each in descendants(process.pid) if each.parent == process.pid]
        os.kill(shell.pid, signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, "the end of the shell")
