"""Makes the description of the package from README.md; hatchling calls it when it builds the package.

README.md links to files beside it, which works in a checkout and wherever the repository is shown. On the page of a
package index there are no such files, so there the links are absolute, and lead to the tag of the version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK_TO_FILE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Pictures are linked as files, everything else as pages of the repository."""

    def absolute(match: re.Match[str]) -> str:
        mark, label, path = match.groups()
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return _LINK_TO_FILE.sub(absolute, text)


class PackageReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
