#!/bin/sh
# build_deb.sh: builds dist/svcnode_VERSION_ARCH.deb. deploy/debian has the sources of the package.
set -eu
cd "${0%/*}/.."

for tool in dpkg-buildpackage dh /usr/bin/python3; do
    command -v "$tool" > /dev/null || {
        echo "make: no $tool: sudo apt-get install --no-install-recommends dpkg-dev debhelper python3" >&2
        exit 1
    }
done

# The same bytes from the same commit.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || date +%s)}"
export UV="${UV:-$PWD/.uv/bin/uv}"
version=$(.venv/bin/python -c 'from svcnode.version import __version__; print(__version__)')

folder=build/deb/svcnode
rm -rf build/deb
mkdir -p "$folder" dist
.venv/bin/python -m build --wheel --no-isolation --outdir "$folder/dist" . > /dev/null
cp -r deploy requirements scripts CHANGELOG.md "$folder"
cp -r deploy/debian "$folder/debian"

# A version before a release sorts before it: 1.0rc1 is 1.0~rc1.
cat > "$folder/debian/changelog" << END
svcnode ($(echo "$version" | sed -E 's/\.?(a|b|rc|dev)([0-9])/~\1\2/')) unstable; urgency=medium

  * Version $version; /usr/share/doc/svcnode/CHANGELOG.md.gz has the changes.

 -- The svcnode authors <svcnode@example.org>  $(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")
END

(cd "$folder" && dpkg-buildpackage --build=binary --unsigned-changes --unsigned-buildinfo) > build/deb/log 2>&1 || {
    tail -n 20 build/deb/log >&2
    exit 1
}
mv build/deb/*.deb dist
ls dist/svcnode_*.deb
