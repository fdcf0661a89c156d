"""A message bus of its own, and a stand-in for systemd on it, with the properties of units."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Self

import jeepney
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection

from svcnode.probes.systemd import escape_unit
from tests.support.servers.base import RealServer
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>{more}
  </policy>
</busconfig>
"""
# As in systemd's own policy for what a user may not do.
NO_ACCESS = '<deny send_destination="org.freedesktop.systemd1"/>'
_NAME = "org.freedesktop.systemd1"


class DbusServer(RealServer):
    more_policy = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = Path(mkdtemp()) / "bus"  # the path of a socket has at most 107 bytes

    def prepare(self) -> None:
        (self.folder / "bus.conf").write_text(_CONFIG.format(path=self.path, more=self.more_policy))

    def command(self) -> Sequence[str]:
        config = self.folder / "bus.conf"
        return [program("dbus-daemon", "dbus-daemon"), "--nofork", "--nopidfile", f"--config-file={config}"]

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.path))
            return True

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()


class ClosedDbusServer(DbusServer):
    more_policy = NO_ACCESS


class FakeSystemd:
    """Answers Get of org.freedesktop.DBus.Properties for its units, as systemd does.

    systemd loads a unit when its properties are read. For one without a file they are those of `MISSING`.
    """

    MISSING = {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}  # noqa: RUF012  constant

    def __init__(self, bus: Path) -> None:
        self.units: dict[str, dict[str, Any]] = {}
        self._connection = open_dbus_connection(f"unix:path={bus}")
        self._connection.send_and_get_reply(message_bus.RequestName(_NAME))
        self._thread = threading.Thread(target=self._serve, name="systemd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()

    def set_unit(self, name: str, active: str, sub: str, **properties: Any) -> None:
        self.units[name] = {"LoadState": "loaded", "ActiveState": active, "SubState": sub, **properties}

    def _serve(self) -> None:
        with suppress(OSError):  # the end
            while True:
                message = self._connection.receive()
                if message.header.message_type is jeepney.MessageType.method_call:
                    self._connection.send(self._reply(message))

    def _reply(self, message: jeepney.Message) -> jeepney.Message:
        path = message.header.fields[jeepney.HeaderFields.path]
        names = {f"/org/freedesktop/systemd1/unit/{escape_unit(name)}": name for name in self.units}
        interface, name = message.body
        defaults = {"Result": "success", "NRestarts": 0} if interface.endswith(".Service") else self.MISSING
        value = self.units.get(names.get(path, ""), {}).get(name, defaults.get(name))
        if value is None:
            return jeepney.new_error(message, "org.freedesktop.DBus.Error.UnknownProperty", "s", (f"no {name}",))
        variant = ("u", value) if isinstance(value, int) else ("s", value)
        return jeepney.new_method_return(message, "v", (variant,))
