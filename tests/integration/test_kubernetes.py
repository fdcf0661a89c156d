"""The manifests in deploy/kubernetes: valid for three versions of Kubernetes, consistent, and true to the node."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
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
DEPLOYMENTS = ("deployment", "sidecar")
CONFIG_FOLDER, SECRETS_FOLDER = "/etc/svcnode", "/etc/svcnode-secrets"
SECRETS = {"operator-token": "0123456789abcdef0123", "ledger-password": "let-me-in"}


def pod(name: str) -> Any:
    return MANIFESTS[name]["spec"]["template"]["spec"]


def container(deployment: str, name: str) -> Any:
    (found,) = (each for each in pod(deployment)["containers"] if each["name"] == name)
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


def test_the_validation_notices_mistakes() -> None:
    misspelled = json.loads(json.dumps(MANIFESTS["deployment"]).replace("livenessProbe", "livelinessProbe"))
    wrong_type = {**MANIFESTS["service"], "spec": {"ports": [{"port": "8420"}]}}
    assert len(schema_errors([misspelled, wrong_type], VERSIONS[0])) == 2


def test_the_kustomization_has_all_manifests_of_a_node_of_its_own() -> None:
    listed = {name.removesuffix(".yaml") for name in KUSTOMIZATION["resources"]}
    assert listed == set(MANIFESTS) - {"sidecar", "servicemonitor"}
    assert [image["name"] for image in KUSTOMIZATION["images"]] == ["svcnode"]


def test_kustomize_renders_the_base() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    ended = subprocess.run(
        [kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    rendered = list(yaml.safe_load_all(ended.stdout))
    assert sorted(each["kind"] for each in rendered) == ["ConfigMap", "Deployment", "NetworkPolicy", "Service"]
    assert "image: registry.example.com/svcnode:0.1.0" in ended.stdout


# ---- consistency


@pytest.mark.parametrize("name", ["service", "networkpolicy", "servicemonitor"])
def test_a_selector_selects_the_node(name: str) -> None:
    spec = MANIFESTS[name]["spec"]
    selector = spec.get("podSelector", spec.get("selector"))
    of_pod = MANIFESTS["deployment"]["spec"]["template"]["metadata"]["labels"]
    selected = MANIFESTS["service"]["metadata"]["labels"] if name == "servicemonitor" else of_pod
    assert selector.get("matchLabels", selector).items() <= selected.items()


def test_every_named_port_is_that_of_the_container() -> None:
    (port,) = container("deployment", "svcnode")["ports"]
    (of_service,) = MANIFESTS["service"]["spec"]["ports"]
    (of_policy,) = MANIFESTS["networkpolicy"]["spec"]["ingress"][0]["ports"]
    (of_monitor,) = MANIFESTS["servicemonitor"]["spec"]["endpoints"]
    assert {of_service["targetPort"], of_policy["port"], of_monitor["port"]} == {port["name"]}
    assert of_service["name"] == of_monitor["port"]
    assert config().count(f'listen = "0.0.0.0:{port["containerPort"]}"') == 1


@pytest.mark.parametrize("name", ["svcnode", "reload"])
def test_the_sidecar_has_the_containers_of_the_node(name: str) -> None:
    assert container("sidecar", name) == container("deployment", name)


def test_the_sidecar_has_the_pod_of_the_node() -> None:
    node, sidecar = ({key: value for key, value in pod(name).items() if key != "containers"} for name in DEPLOYMENTS)
    assert node == sidecar


def test_a_deployment_selects_its_own_pods() -> None:
    for name in DEPLOYMENTS:
        spec = MANIFESTS[name]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_every_mount_has_its_volume_and_is_whole() -> None:
    volumes = {volume["name"]: volume for volume in pod("deployment")["volumes"]}
    for name in ("svcnode", "reload"):
        mounts = {mount["name"]: mount for mount in container("deployment", name)["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        assert not any("subPath" in mount for mount in mounts.values()), "it would never be updated"
        assert mounts["config"]["mountPath"] == CONFIG_FOLDER
        assert mounts["secrets"]["mountPath"] == SECRETS_FOLDER
    assert volumes["config"]["configMap"]["name"] == MANIFESTS["configmap"]["metadata"]["name"]


def test_the_token_of_the_scrape_is_that_of_the_node() -> None:
    (endpoint,) = MANIFESTS["servicemonitor"]["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    (secret,) = (volume["secret"] for volume in pod("deployment")["volumes"] if "secret" in volume)
    assert credentials["name"] == secret["secretName"]
    assert f'operator_token = {{ file = "{SECRETS_FOLDER}/{credentials["key"]}" }}' in config()


def test_the_containers_have_no_privileges() -> None:
    assert pod("deployment")["securityContext"]["runAsNonRoot"] is True
    for name in ("svcnode", "reload"):
        assert container("deployment", name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_grace_period_covers_the_drain() -> None:
    (drain_s,) = re.findall(r'drain = "(\d+)s"', config())
    assert pod("deployment")["terminationGracePeriodSeconds"] > int(drain_s) + 30


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
        volume.write({"svcnode.toml": local(config(), tmp_path) + '[defaults]\nstart_period = "0s"\nfall = 1\n'})
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: get(agent, "/svc/node/health") == 503)
        assert probe(agent, "readinessProbe") == 503
        assert probe(agent, "livenessProbe") == 200
        agent.signal(signal.SIGTERM)
        agent.wait_for_event("draining")
        assert probe(agent, "livenessProbe") == 200


def test_prometheus_can_read_the_metrics_with_the_token_only(volume: Volume, tmp_path: Path) -> None:
    (endpoint,) = MANIFESTS["servicemonitor"]["spec"]["endpoints"]
    with running_node(tmp_path) as agent:
        assert get(agent, endpoint["path"]) == 401
        token = SECRETS[endpoint["authorization"]["credentials"]["key"]]
        assert get(agent, endpoint["path"], Authorization=f"{endpoint['authorization']['type']} {token}") == 200


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
