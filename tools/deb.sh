#!/bin/sh
# Debian packages from what was built: tandem, libtandem0, libtandem-dev, tandem-models-tiny.
# Usage: tools/deb.sh BUILD_FOLDER VERSION OUT. The same build gives the same packages, byte for byte: times are SOURCE_DATE_EPOCH's (else the last
# commit's). DEB_COMPRESS=gzip is quicker than the default. The CUDA module goes along when it was built; what it needs of the driver is only suggested, since
# without it the CPU is used. Needs dpkg-dev.
set -e
B=$1
VERSION=$2
OUT=$3
cd "$(dirname "$0")/.."
[ -n "$OUT" ] && [ -x "$B/bin/tandemd" ] || { echo "deb: run 'make deb'" >&2; exit 2; }
for p in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
	command -v $p >/dev/null || { echo "deb: $p is missing (package dpkg-dev)" >&2; exit 1; }
done
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}"
export SOURCE_DATE_EPOCH
ARCH=$(dpkg-architecture -qDEB_HOST_ARCH)
MULTI=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
MAINTAINER=${DEB_MAINTAINER:-The tandem maintainers <tandem@example.org>}
T=$(mktemp -d "${TMPDIR:-/tmp}/tandem-deb.XXXXXX")
trap 'rm -rf "$T"' EXIT
trap 'exit 1' INT TERM
umask 022

# ---- everything into one tree, then apart; what no rule names is tandem's
make -s --no-print-directory install B="$B" DESTDIR="$T/tandem" PREFIX=/usr >/dev/null
P=$T/tandem/usr
move() { # package, target folder, files...
	mkdir -p "$T/$1/usr/$2"
	to=$T/$1/usr/$2
	shift 2
	mv "$@" "$to/"
}
move libtandem0 "lib/$MULTI" "$P/lib/libtandem.so.0"
move libtandem-dev "lib/$MULTI" "$P/lib/libtandem.so" "$P/lib/libtandem.a"
move libtandem-dev "lib/$MULTI/pkgconfig" "$P/lib/pkgconfig/libtandem.pc"
move libtandem-dev include "$P/include/tandem.h"
move libtandem-dev share/doc/libtandem-dev/examples "$P"/share/doc/tandem/*.c
move tandem-models-tiny share/tandem/models "$P/share/tandem/models/tiny"
rmdir "$P/lib/pkgconfig" "$P/include" "$P/share/tandem/models"
rm "$P/share/tandem/tandem.ini" "$P/share/doc/tandem/LICENSE"
sed -i "s|^libdir=.*|libdir=\${prefix}/lib/$MULTI|; s|^prefix=.*|prefix=/usr|" "$T/libtandem-dev/usr/lib/$MULTI/pkgconfig/libtandem.pc"
rmdir "$P/share/tandem"
[ ! -d "$P/share/man" ] || find "$P/share/man" -type f -exec gzip -9n {} +
mkdir -p "$T/tandem/etc/tandem"
cp tools/deb/tandem.ini "$T/tandem/etc/tandem/"
sed 's|^; target = .*|target = /usr/share/tandem/models/tiny/target-int4|; s|^drafter = .*|drafter = /usr/share/tandem/models/tiny/drafter-int4|' tools/deb/tandem.ini \
	>"$T/tandem-models-tiny/usr/share/tandem/tiny.ini"

# Installed in the system's own folders, programs need no way of their own to libraries.
for f in "$P"/bin/* "$P"/lib/tandem/* "$T/libtandem0/usr/lib/$MULTI"/*; do
	strip --strip-unneeded "$f"
	if command -v chrpath >/dev/null && ! case $f in *cuda*) ;; *) false ;; esac; then
		chrpath -d "$f" >/dev/null
	fi
done
strip --strip-debug "$T/libtandem-dev/usr/lib/$MULTI/libtandem.a"

# ---- what each package says of itself
needs() { # programs...: packages that their libraries are in
	mkdir -p "$T/shlibs/debian"
	printf 'Source: tandem\n\nPackage: tandem\nArchitecture: any\n' >"$T/shlibs/debian/control"
	(cd "$T/shlibs" && dpkg-shlibdeps --ignore-missing-info -O "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}
describe() { # package, architecture, lines of control; the description comes by standard input
	mkdir -p "$T/$1/DEBIAN" "$T/$1/usr/share/doc/$1"
	{
		printf 'Package: %s\nSource: tandem\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$1" "$VERSION" "$2" "$MAINTAINER"
		printf 'Installed-Size: %s\n' "$(du -k -s --apparent-size --exclude=DEBIAN "$T/$1" | cut -f 1)"
		printf '%s\n' "$3"
		printf 'Priority: optional\n'
		cat
	} >"$T/$1/DEBIAN/control"
	{
		printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: tandem\n\nFiles: *\nCopyright: %s the tandem authors\n' "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)"
		printf 'License: Apache-2.0\n The whole text is in /usr/share/common-licenses/Apache-2.0 on Debian systems.\n'
	} >"$T/$1/usr/share/doc/$1/copyright"
	printf 'tandem (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the package tandem says what this version can do.\n\n -- %s  %s\n' "$VERSION" "$MAINTAINER" \
		"$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$T/$1/usr/share/doc/$1/changelog.gz"
}

describe tandem "$ARCH" "Section: net
Depends: $(needs $(for f in "$P"/bin/* "$P"/lib/tandem/tandem-target "$P"/lib/tandem/tandem-drafter; do echo "-e$f"; done)), systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Suggests: tandem-models-tiny, libcuda1, libcublas12, nvidia-cuda-mps, haproxy" <<'END'
Description: one language model on one GPU, served to the programs of one machine
 tandemd serves a Qwen3.5 model with a DFlash drafter that proposes blocks of
 tokens: the answers are the model's own, only sooner. It shares the GPU fairly
 between users and speaks its own protocol over a Unix socket, and HTTP as
 OpenAI's API has it. The command tandem asks it.
 .
 Nothing is started before a model is named in /etc/tandem/tandem.ini.
END
describe libtandem0 "$ARCH" "Section: libs
Multi-Arch: same
Depends: $(needs "-e$T/libtandem0/usr/lib/$MULTI/libtandem.so.0")" <<'END'
Description: client library of tandem
 Programs that use it ask tandemd, the language model service of this machine,
 over its Unix socket.
END
describe libtandem-dev "$ARCH" "Section: libdevel
Multi-Arch: same
Depends: libtandem0 (= $VERSION), libprotobuf-c-dev" <<'END'
Description: client library of tandem, for development
 Header, static library, pkg-config file and an example of libtandem, by which
 C programs ask the language model service of this machine.
END
describe tandem-models-tiny all "Section: misc
Multi-Arch: foreign
Enhances: tandem" <<'END'
Description: tiny pair of models for tandem, to try it and to test programs
 A model of 33 million parameters and its drafter: what they say is of no use,
 but everything runs with them, on any machine. Copy
 /usr/share/tandem/tiny.ini to /etc/tandem/tandem.ini to serve them.
END

echo /etc/tandem/tandem.ini >"$T/tandem/DEBIAN/conffiles"
for s in postinst prerm postrm; do
	install -m 755 "tools/deb/$s" "$T/tandem/DEBIAN/$s"
done
echo "libtandem 0 libtandem0 (>= $VERSION)" >"$T/libtandem0/DEBIAN/shlibs"
echo 'activate-noawait ldconfig' >"$T/libtandem0/DEBIAN/triggers"

# ---- packed
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
for p in tandem libtandem0 libtandem-dev tandem-models-tiny; do
	(cd "$T/$p" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 -r md5sum >DEBIAN/md5sums)
	find "$T/$p" -type f -perm /111 ! -path '*/DEBIAN/*' ! -path '*/bin/*' ! -path '*/lib/tandem/*' -exec chmod 644 {} +
	find "$T/$p" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	arch=$(sed -n 's/^Architecture: //p' "$T/$p/DEBIAN/control")
	dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$T/$p" "$OUT/${p}_${VERSION}_$arch.deb" >/dev/null
	echo "deb: $OUT/${p}_${VERSION}_$arch.deb"
done
