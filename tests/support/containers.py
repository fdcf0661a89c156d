"""Images built by `make image` on a bare Debian, and containers of them, without a container runtime.

A container is what the image says (entry point, command, user, variables, volume) in namespaces of its own: process 1,
a read-only root, no capabilities, no new privileges, and a network with loopback only.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.support.debian import PRINT_VERSION, bare_debian, download_packages
from tests.support.processes import DEADLINE_S
from tests.support.servers.base import descendants, wait_until
from tests.support.servers.provision import program, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 500
BASE = "localhost/svcnode-test-base"
IMAGE = "localhost/svcnode-test"
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # that of common base images
# The arguments: root, volume, pairs of a path and where it is mounted, --, command. /run is in memory.
_ENTER = """
set -e
ip link set lo up
root=$1 volume=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$volume" "$root/var/lib/svcnode"
while [ "$1" != -- ]; do
  [ -e "$root$2" ] || mkdir -p "$root$2"
  mount --bind -o ro "$1" "$root$2"; shift 2
done; shift
mount -t tmpfs -o uid=10001,mode=0700 tmpfs "$root/run"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


class ImageConfig(NamedTuple):
    """What the image says about its containers."""

    entrypoint: list[str]
    command: list[str]
    user: str
    environ: dict[str, str]
    healthcheck: list[str]
    labels: dict[str, str]
    volumes: list[str]
    stop_signal: str


class ImageStore:
    """Images and their root file systems, in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            skip_or_fail("images are built as root")
        self._folder = folder
        storage = ["--root", f"{folder}/storage", "--runroot", f"{folder}/run"]
        self._buildah = [program("buildah", "buildah"), *storage]
        self._mounted: list[str] = []

    def close(self) -> None:
        for container in self._mounted:
            self.buildah("umount", container)
        # Layers of overlay file systems can be removed only by buildah.
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")

    def buildah(self, *arguments: str) -> str:
        ended = subprocess.run(
            [*self._buildah, *arguments], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
        assert ended.returncode == 0, f"{shlex.join(arguments)}: {ended.stderr[-2000:]}"
        return ended.stdout.strip()

    def make_image(self) -> None:
        variables = [f"{name}={value}" for name, value in self.make_variables().items()]
        ended = subprocess.run(
            ["make", "image", *variables],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]

    def make_variables(self) -> dict[str, str]:
        """For `make image` on a bare Debian with Python, with packages from a folder: a build needs no network."""
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(bare_debian("python3-venv")), "/")
        self.buildah("config", "--env", f"PATH={BASE_PATH}", container)
        self.buildah("commit", "--quiet", "--rm", container, BASE)
        packages = self._download_packages()
        flags = f"--isolation chroot --volume {packages}:/packages:ro"
        flags += " --build-arg PIP_FIND_LINKS=/packages --build-arg PIP_NO_INDEX=1"
        return {"BASE": BASE, "IMAGE": IMAGE, "BUILDAH": shlex.join(self._buildah), "BUILD_FLAGS": flags}

    def _download_packages(self) -> Path:
        base = self.buildah("from", BASE)
        version = self.buildah("run", "--isolation", "chroot", base, *PRINT_VERSION)
        self.buildah("rm", base)
        packages = self._folder / "packages"
        download_packages(packages, version, "runtime", "build")
        return packages

    def config(self) -> ImageConfig:
        described: Any = json.loads(self.buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
        return ImageConfig(
            entrypoint=described["Entrypoint"],
            command=described["Cmd"],
            user=described["User"],
            environ=dict(variable.split("=", 1) for variable in described["Env"]),
            healthcheck=described["Healthcheck"]["Test"],
            labels=described["Labels"],
            volumes=list(described["Volumes"]),
            stop_signal=described["StopSignal"],
        )

    def mount(self) -> Path:
        """A new root file system of the image."""
        container = self.buildah("from", "--pull-never", IMAGE)
        self._mounted.append(container)
        return Path(self.buildah("mount", container))

    def sizes_bytes(self) -> dict[str, int]:
        """Of the base and of the image, which includes it."""
        sizes: dict[str, int] = {}
        for name in (BASE, IMAGE):
            (image,) = json.loads(self.buildah("images", "--json", f"{name}:latest"))
            sizes[name] = _size_bytes(image["size"])
        return sizes


def _size_bytes(text: str) -> int:
    """Such as "225 MB"."""
    number, unit = text.split()
    return int(float(number) * {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}[unit.upper()])


class Container:
    """Runs during its `with` block."""

    def __init__(
        self,
        config: ImageConfig,
        root: Path,
        volume: Path,
        *command: str,
        environ: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> None:
        """`command` replaces that of the image. `mounts` are read-only: path in the container -> path."""
        self._config = config
        self._environ = {**config.environ, **(environ or {})}
        self._lines: list[str] = []
        binds = [argument for path, outside in (mounts or {}).items() for argument in (str(outside), path)]
        namespaces = ["unshare", "--pid", "--mount", "--net", "--uts", "--ipc", "--fork"]
        enter = ["sh", "-c", _ENTER, "sh", str(root), str(volume), *binds, "--"]
        arguments = [*config.entrypoint, *(command or config.command)]
        self.process = subprocess.Popen(
            [*namespaces, *enter, *self._unprivileged(), *arguments],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._log = threading.Thread(target=self._read_log, daemon=True)
        self._log.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Not `unshare`: the change of the user has cancelled the signal that the end of its parent would send.
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self._log.join()

    def _unprivileged(self) -> list[str]:
        user, _, group = self._config.user.partition(":")
        rights = ["--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs"]
        rights += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return ["setpriv", *rights, "env", "-i", *(f"{name}={value}" for name, value in self._environ.items())]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            self._lines.extend(self.process.stderr)

    @property
    def log(self) -> str:
        return "".join(self._lines)

    @property
    def process_1(self) -> int:
        """Its id outside."""
        (found,) = (each.pid for each in descendants(self.process.pid) if each.parent == self.process.pid)
        return found

    def wait_for_event(self, event: str, *, times: int = 1) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            lines = (json.loads(line) for line in list(self._lines) if line.startswith("{"))
            return [line for line in lines if line.get("event") == event]

        wait_until(lambda: len(found()) >= times or self.process.poll() is not None, event)
        assert len(found()) >= times, self.log
        return found()[-1]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker exec` does: in the namespaces of the container, with the user and the variables of the image."""
        enter = ["nsenter", "--target", str(self.process_1), "--mount", "--pid", "--net", "--uts", "--ipc", "--root"]
        return subprocess.run(
            [*enter, "--wd=/", *self._unprivileged(), *command],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def healthcheck(self) -> int:
        kind, *command = self._config.healthcheck
        assert kind == "CMD"
        return self.run(*command).returncode

    def get(self, path: str) -> int:
        """The code of a response, at an address that is not the one of loopback."""
        code = "import http.client, sys; c = http.client.HTTPConnection('127.0.0.2', 8420, timeout=9)"
        code += "; c.request('GET', sys.argv[1], headers={'Host': '10.0.0.7'}); print(c.getresponse().status)"
        ended = self.run("python3", "-c", code, path)
        return int(ended.stdout) if ended.returncode == 0 else 0

    def statuses(self) -> dict[str, str]:
        (line,) = self.run("svcnode", "status", "--json").stdout.splitlines()
        services = json.loads(line)["services"] or []
        return {service["id"]: service["status"] for service in services}

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process_1, number)

    def wait(self) -> int:
        """The exit code of the container."""
        return self.process.wait(DEADLINE_S)
