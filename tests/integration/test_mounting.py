"""Ids with a slash work below every mount point, and behind a proxy that decodes paths."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

import svcnode
from tests.support import mounted_apps
from tests.support.mounted_apps import RUNNERS, SERVICES
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import Agent
from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import python_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

# In an environment of their own: they bring many packages, and some of these change every test run.
PINS = Path(__file__).parents[2] / "requirements" / "frameworks.txt"
SOURCE = Path(svcnode.__file__).parents[1]


class MountedApp(RealServer):
    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._name = name
        self.mount = "/status" if name in ("litestar-below-a-path", "quart-behind-dispatcher") else ""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.mount}"

    def command(self) -> Sequence[str]:
        python = python_environment(PINS) / "bin" / "python"
        return ["env", f"PYTHONPATH={SOURCE}", str(python), mounted_apps.__file__, self._name, str(self.port)]

    def is_ready(self) -> bool:
        return self.status("/svc/node") == 200

    def status(self, target: str) -> int:
        return http_request(self.port, f"{self.mount}{target}")[0]


@pytest.mark.wide
@pytest.mark.parametrize("name", RUNNERS)
def test_every_id_is_found_below_the_mount_point(name: str, tmp_path: Path) -> None:
    with MountedApp(tmp_path, name) as app:
        for service_id in SERVICES:
            assert app.status(f"/svc/node/services/{quote(service_id, safe='')}/health") == 200
        assert app.status("/svc/node/services") == 200
        assert app.status("/svc/node/services/none/health") == 404
        assert app.status("/svc/node/health/") == 404


def test_the_lines_of_the_documentation_are_those_of_the_mounted_apps() -> None:
    page = (Path(__file__).parents[2] / "docs" / "embed.md").read_text()
    rows = "".join(re.findall(r"^\| (?:Litestar|Quart) \|.*\n", page, re.MULTILINE))
    lines = re.findall(r"`((?:mount|app|lifespan)\b[^`]*[)\]].*?)`", rows)
    source = inspect.getsource(mounted_apps)
    assert len(lines) == 3
    assert all(line in source for line in lines)


def test_an_id_with_a_slash_is_found_behind_a_proxy_that_decodes_the_path(tmp_path: Path) -> None:
    """nginx decodes the path if `proxy_pass` has a path itself."""
    config = '[[services]]\nid = "a/b c%"\nstatus = "Up"\n[[services]]\nid = "b"\nstatus = "Down"\n'
    location = "location /nodes/7/ { proxy_pass http://127.0.0.1:8420/; }"
    with (
        Agent(tmp_path, "--listen", "127.0.0.1:0", config=config) as agent,
        nginx_in_front_of(agent, location) as port,
    ):
        services = "/nodes/7/svc/node/services"
        assert http_request(port, f"{services}/a%2Fb%20c%25/health")[0] == 200
        assert http_request(port, f"{services}/b/health")[0] == 503
        assert http_request(port, f"{services}/a%2Fb/health")[0] == 404
