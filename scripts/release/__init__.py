"""What a release needs: `make pyz`, `make release`, `make release-check` and `make audit`.

__main__.py    make release: the steps; builds everything and compares two builds
tag.py         what is a release: tag, version and CHANGELOG agree
artefacts.py   sdist, wheel and pyz; SBOM and checksums
pyz.py         make pyz: svcnode.pyz, one file that needs nothing but Python
pyz_main.py    the first module that runs in svcnode.pyz; any Python can parse it
pyz_unpack.py  the second one: unpacks the packages once, then calls svcnode
check.py       make release-check: the wheel alone runs the commands of README; the sdist builds the same wheel
audit.py       make audit: known vulnerabilities of the pinned packages
commands.py    runs commands, and ends with one line if one fails
"""
