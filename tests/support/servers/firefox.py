"""Firefox without a window, driven by its own Marionette protocol: JSON with its length in front, over a socket."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.support.servers.base import READY_TIMEOUT_S, RealServer
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "End": "\ue010", "Home": "\ue011"} | {
    f"Arrow{side}": chr(0xE012 + number) for number, side in enumerate(("Left", "Up", "Right", "Down"))
}
DARK = {"layout.css.prefers-color-scheme.content-override": 0}
FORCED_COLOURS = {"browser.display.document_color_use": 2}
MORE_CONTRAST = {"ui.useAccessibilityTheme": 1, "browser.display.document_color_use": 1}  # with the page's own colours
# Nothing that asks other servers, and no second profile.
PREFERENCES = {
    "app.update.auto": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
    "ui.prefersReducedMotion": 1,
}


def _objects(pdf: bytes) -> Iterator[bytes]:
    """What is in its compressed streams."""
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            yield zlib.decompressobj().decompress(stream)


class FirefoxError(AssertionError):
    """The protocol answered with an error."""


class Firefox(RealServer):
    def __init__(self, folder: Path, preferences: Mapping[str, object] | None = None) -> None:
        super().__init__(folder)
        self._preferences = {**PREFERENCES, **(preferences or {})}
        self._socket: socket.socket | None = None
        self._requests = 0

    def command(self) -> Sequence[str]:
        path = program("firefox-esr", "firefox-esr")
        control = ["--headless", "--marionette", "--remote-allow-system-access"]  # the last for `in_browser`
        return [path, *control, "--no-remote", "--profile", str(self.folder / "profile")]

    def prepare(self) -> None:
        profile = self.folder / "profile"
        profile.mkdir(exist_ok=True)
        preferences = {**self._preferences, "marionette.port": self.port}
        lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in preferences.items())
        (profile / "user.js").write_text("".join(lines))

    def environ(self) -> Mapping[str, str]:
        return {"MOZ_HEADLESS_WIDTH": "1280", "MOZ_HEADLESS_HEIGHT": "1000"}

    def is_ready(self) -> bool:
        with socket.create_connection((self.host, self.port), timeout=5.0) as connection:
            return b"gecko" in connection.recv(1024)

    def set_up(self) -> None:
        self._socket = socket.create_connection((self.host, self.port), timeout=READY_TIMEOUT_S)
        self._receive()  # its greeting
        self._ask("WebDriver:NewSession", capabilities={"alwaysMatch": {"pageLoadStrategy": "normal"}})
        self._ask("WebDriver:SetTimeouts", script=120_000)

    def __exit__(self, *error: object) -> None:
        if self._socket is not None:
            self._socket.close()
        super().__exit__(*error)

    # ---- the protocol

    def _receive(self) -> Any:
        assert self._socket is not None
        length = b""
        while not length.endswith(b":"):
            length += self._socket.recv(1)
        text = b""
        while len(text) < int(length[:-1]):
            text += self._socket.recv(1 << 16)
        return json.loads(text)

    def _ask(self, command: str, **parameters: object) -> Any:
        assert self._socket is not None
        self._requests += 1
        request = json.dumps([0, self._requests, command, parameters]).encode()
        self._socket.sendall(b"%d:%b" % (len(request), request))
        _, _, error, result = self._receive()
        if error is not None:
            raise FirefoxError(error["message"])
        return result

    # ---- what tests do

    def open(self, url: str) -> None:
        self.load(url)
        self.wait_for("document.querySelector('main.enhanced')")

    def load(self, url: str) -> None:
        self._ask("WebDriver:Navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Of a JavaScript expression, also of a promise."""
        script = f"const done = arguments[arguments.length - 1]; Promise.resolve({expression}).then(done)"
        options = {"sandbox": "tests", "newSandbox": False}  # not that of the page, whose policy forbids it
        return self._ask("WebDriver:ExecuteAsyncScript", script=script, args=[], **options)["value"]

    def execute(self, script: str) -> None:
        """What it defines stays."""
        self._ask("WebDriver:ExecuteScript", script=script, args=[], sandbox="tests", newSandbox=False)

    def wait_for(self, condition: str, timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline_s, condition
            time.sleep(0.05)

    def in_browser(self, script: str) -> None:
        """Run a script in the window of the browser instead of the page; `context` is that of the page."""
        self._ask("Marionette:SetContext", value="chrome")
        context = "const context = gBrowser.selectedBrowser.browsingContext;"
        self._ask("WebDriver:ExecuteScript", script=f"{context} {script}", args=[], sandbox="system")
        self._ask("Marionette:SetContext", value="content")

    def print_pages(self) -> int:
        """How many pages of A4 the page takes."""
        pdf = base64.b64decode(self._ask("WebDriver:Print", page={"width": 21.0, "height": 29.7})["value"])
        return len(re.findall(rb"/Type\s*/Page\b", b"".join(_objects(pdf))))

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": KEYS[key]} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("WebDriver:PerformActions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def screenshot(self) -> bytes:
        return base64.b64decode(self._ask("WebDriver:TakeScreenshot", full=False)["value"])
