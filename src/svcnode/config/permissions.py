"""Who can read the files of a configuration, and whether the file itself holds secrets.

Only the permissions for others count. A group that may read a file was chosen by whoever set it: the Debian package
installs the configuration as 0640 root:svcnode.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from svcnode.config.sources import MAX_FILE_BYTES
from svcnode.net.files import read_in_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from svcnode.core.redaction import SecretScope

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def others_can_read(path: Path) -> bool:
    return _others_may(path, stat.S_IROTH)


def others_can_write(path: Path) -> bool:
    return _others_may(path, stat.S_IWOTH)


def _others_may(path: Path, permission: int) -> bool:
    """Whether users may who are neither the owner nor in the group. They also need access to every folder above."""
    try:
        real = path.resolve()
        return bool(real.stat().st_mode & permission) and all(
            folder.stat().st_mode & stat.S_IXOTH for folder in real.parents
        )
    except (OSError, RuntimeError):  # it cannot be read, or its links are a circle
        return False


def exposed_secret_line(file: Path | None, secrets: SecretScope, environ: Mapping[str, str]) -> int | None:
    """The first line with a secret in a configuration that others can read; None if there is none.

    A secret from a variable is not in the file, even if the file has the same word somewhere by chance.
    """
    if file is None or not others_can_read(file):
        return None
    try:
        text = read_in_time(file, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    place = secrets.find_in(text, besides={environ.get(name, "") for name in VARIABLE.findall(text)})
    return None if place is None else text.count("\n", 0, place) + 1
