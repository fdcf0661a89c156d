"""debian_copyright.py PACKAGES FILE: moves the licenses of all packages in a folder to the copyright file.

Debian wants them in one file, which refers to the texts that every Debian has.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LICENSE_NAME = re.compile("(?i)(licen[cs]e|copying|notice|authors|copyright).*")
# Texts in /usr/share/common-licenses, by words in which only they begin.
COMMON = {
    "Apache-2.0": "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
    "LGPL-3": "GNU LESSER GENERAL PUBLIC LICENSE Version 3",
    "GPL-3": "GNU GENERAL PUBLIC LICENSE Version 3",
    "MPL-2.0": "Mozilla Public License Version 2.0 ==",
}
COPYRIGHT_LINE = re.compile(r"(?im)^[ \t]*copyright (?:\(c\)|©|\d).*$")


def main(packages: Path, file: Path) -> None:
    parts = [file.read_text(encoding="utf-8").rstrip()]
    of_packages = (one for one in distributions(path=[str(packages)]) if one.name != "svcnode")
    for package in sorted(of_packages, key=lambda one: one.name.lower()):
        parts.append(f"{'-' * 78}\n{package.name} {package.version}\nLicense: {license_of(package)}")
        parts += map(license_text, license_files(packages, package))
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    for found in packages.glob("*.dist-info/**/*"):
        if found.is_file() and LICENSE_NAME.fullmatch(found.name):
            found.unlink()


def license_of(package: Distribution) -> str:
    """As its metadata say; a long text is in its file."""

    def values(field: str) -> list[str]:
        return package.metadata.get_all(field) or []

    named = [one for one in values("License-Expression") + values("License") if "\n" not in one]
    classes = [one.rpartition(" :: ")[2] for one in values("Classifier") if one.startswith("License ::")]
    return next(iter(named), ", ".join(classes) or "see below")


def license_files(packages: Path, package: Distribution) -> Iterator[Path]:
    name = re.sub("[-_.]+", "_", package.name).lower()
    for folder in packages.glob("*.dist-info"):
        if re.sub("[-_.]+", "_", folder.name.partition("-")[0]).lower() == name:
            yield from sorted(
                file for file in folder.rglob("*") if file.is_file() and LICENSE_NAME.fullmatch(file.name)
            )


def license_text(file: Path) -> str:
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    words = " ".join(text.split()).lower()
    common = next((name for name, phrase in COMMON.items() if phrase.lower() in words), None)
    if common is None:
        return text
    holders = [line.strip() for line in COPYRIGHT_LINE.findall(text) if "Free Software Foundation" not in line]
    return "\n".join([*holders, f"The text of this license is in /usr/share/common-licenses/{common}."])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
