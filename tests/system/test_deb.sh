#!/bin/sh
# limit: 120
# make deb: four packages that say of themselves what they should, hold what they should and nothing else, are the same each time, and run from where they unpack.
. "$(dirname "$0")/tree_lib.sh"
[ "$B" != build-san ] || { echo "skipped: packages are made of the plain build"; exit 0; }
command -v dpkg-shlibdeps >/dev/null || { echo "skipped: dpkg-dev is not installed"; exit 0; }
export DEB_COMPRESS=gzip SOURCE_DATE_EPOCH=1700000000
V=$(sed -n 's/^VERSION := //p' Makefile)
sh tools/deb.sh "$B" "$V" "$T/one" >"$T/said" 2>&1 || fail "tools/deb.sh: $(cat "$T/said")"
sh tools/deb.sh "$B" "$V" "$T/two" >"$T/said" 2>&1 || fail "tools/deb.sh, again: $(cat "$T/said")"
arch=$(dpkg --print-architecture)
D=$T/one
names="libtandem-dev_${V}_$arch libtandem0_${V}_$arch tandem-models-tiny_${V}_all tandem_${V}_$arch"
[ "$(ls "$D" | sort | tr '\n' ' ')" = "$(for n in $names; do echo "$n.deb"; done | sort | tr '\n' ' ')" ] || fail "packages: $(ls "$D")"
for n in $names; do
	f=$D/$n.deb
	cmp "$f" "$T/two/$n.deb" || fail "$n differs from one time to the next"
	p=${n%%_*}
	[ "$(dpkg-deb -f "$f" Package)" = "$p" ] && [ "$(dpkg-deb -f "$f" Version)" = "$V" ] || fail "$n says that it is $(dpkg-deb -f "$f" Package Version)"
	dpkg-deb -c "$f" >"$T/list"
	! grep -v ' root/root ' "$T/list" || fail "$n: not root's"
	! awk '$1 ~ /^-/ && substr($1, 9, 1) == "w" { print }' "$T/list" | grep . || fail "$n: everybody may write"
	! awk '{ print $6 }' "$T/list" | grep -v -e '^\./$' -e '^\./usr/' -e '^\./etc/$' -e '^\./etc/tandem/$' -e '^\./etc/tandem/tandem.ini$' || fail "$n: a strange place"
	mkdir -p "$T/x/$p"
	dpkg-deb -R "$f" "$T/x/$p"
	(cd "$T/x/$p" && md5sum -c --quiet DEBIAN/md5sums) || fail "$n: checksums"
	for f in usr/share/doc/$p/copyright usr/share/doc/$p/changelog.gz; do
		[ -s "$T/x/$p/$f" ] || fail "$n: no $f"
	done
	for s in preinst postinst prerm postrm; do
		[ ! -e "$T/x/$p/DEBIAN/$s" ] || sh -n "$T/x/$p/DEBIAN/$s" || fail "$n: $s"
	done
	grep -rlI "$ROOT" "$T/x/$p" && fail "$n: the build's place is written in it"
done
X=$T/x/tandem
for f in usr/bin/tandem usr/bin/tandemd usr/lib/tandem/tandem-target usr/lib/tandem/tandem-drafter usr/lib/systemd/system/tandemd.service \
	usr/lib/systemd/system/tandemd.socket usr/lib/sysusers.d/tandem.conf usr/lib/tmpfiles.d/tandem.conf usr/share/doc/tandem/CHANGELOG.md; do
	[ -s "$X/$f" ] || fail "tandem lacks $f"
done
[ "$(cat "$X/DEBIAN/conffiles")" = /etc/tandem/tandem.ini ] || fail "conffiles: $(cat "$X/DEBIAN/conffiles")"
grep -q '^ExecStart=/usr/bin/tandemd$' "$X/usr/lib/systemd/system/tandemd.service" || fail "the unit starts something else"
! grep -e 'systemctl enable' -e 'helper enable' -e 'invoke start' -e 'systemctl start' "$X/DEBIAN/postinst" || fail "an installation starts something"
deps=$(dpkg-deb -f "$D/tandem_${V}_$arch.deb" Depends)
for lib in libc6 libuv1 libnanomsg libprotobuf-c1 libopenblas libpcre2-8-0 libjansson4 systemd; do
	case $deps in *"$lib"*) ;; *) fail "tandem does not depend on $lib: $deps" ;; esac
done
case $deps in *cuda* | *cublas* | *nvidia*) fail "tandem depends on the GPU's libraries: $deps" ;; esac
[ ! -e "$B/lib/tandem-cuda.so" ] || [ -s "$X/usr/lib/tandem/tandem-cuda.so" ] || fail "the CUDA module was built and is not there"
[ -s "$T/x/libtandem0/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)/libtandem.so.0" ] || fail "libtandem0 lacks the library"
[ -s "$T/x/libtandem-dev/usr/include/tandem.h" ] || fail "libtandem-dev lacks the header"
PKG_CONFIG_PATH=$(dirname "$(find "$T/x/libtandem-dev" -name libtandem.pc)") pkg-config --variable=libdir libtandem | grep -q "/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)\$" ||
	fail "libtandem.pc names another folder"

# Not configured: refused, with the setting's name and the code that systemd does not try again for.
run() { # in a process of its own
	exec "$X/usr/bin/tandemd" --config "$1" --tandem.socket="$T/s" --tandem.runtime_dir="$T/run" --engine.device=cpu --engine.context=512 --engine.threads=1
}
(run "$X/etc/tandem/tandem.ini") 2>"$T/log"
code=$?
[ $code = 2 ] && grep -q 'model.target is not set' "$T/log" || fail "as it is installed it ends with $code"
# With the tiny models' own configuration, from where it was unpacked.
sed "s|/usr/share|$T/x/tandem-models-tiny/usr/share|" "$T/x/tandem-models-tiny/usr/share/tandem/tiny.ini" >"$T/ini"
run "$T/ini" 2>"$T/log" &
PID=$!
"$X/usr/bin/tandem" status --socket "$T/s" --wait 60 >"$T/said" 2>&1 || fail "the unpacked daemon does not serve: $(cat "$T/said")"
"$X/usr/bin/tandem" run --socket "$T/s" --max-tokens 8 hello >"$T/said" 2>&1 || fail "no answer: $(cat "$T/said")"
# A removal ends it, also where no service manager runs; an upgrade does not, nor anything else that the lock may name.
prerm() {
	sed "s|/run/systemd/system|$T/none|; s|/run/tandem/lock|$1|; s|/usr/bin/tandemd|$X/usr/bin/tandemd|g" "$X/DEBIAN/prerm" >"$T/prerm"
	timeout 60 sh "$T/prerm" "$2" >"$T/said" 2>&1 || fail "prerm $2: code $?, $(cat "$T/said")"
}
prerm "$T/run/lock" upgrade
kill -0 $PID || fail "an upgrade ended what runs"
for named in $$ '' 'x; false' 0; do
	echo "$named" >"$T/lock"
	prerm "$T/lock" remove
done
prerm "$T/run/lock" remove
[ ! -e "$T/s" ] || fail "a removal leaves it running"
wait $PID || fail "it ended with code $?"
PID=
echo "four packages: $(du -shc "$D"/*.deb | tail -n 1 | cut -f 1) with gzip"
