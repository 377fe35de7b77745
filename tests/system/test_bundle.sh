#!/bin/sh
# The bundle holds every library but the C library's and CUDA's: it runs after a move, and in a root that holds nothing else.
# limit: 300
. "$(dirname "$0")/tree_lib.sh"
if [ "$B" = build-san ]; then
	echo "left out: a build with sanitizers is not bundled"
	exit 0
fi
sh tools/bundle.sh "$B" "$T/made" >"$T/said" 2>&1 || fail "tools/bundle.sh: $(cat "$T/said")"
mkdir "$T/moved"
mv "$T/made" "$T/moved/bundle"
P=$T/moved/bundle

# every library is the bundle's own, or the C library's, or CUDA's; also what the libraries need themselves
n=0
for f in "$P"/bin/* "$P"/tests/*; do
	[ -f "$f" ] && [ "$(head -c 4 "$f" | tr -d '\177')" = ELF ] || continue
	ldd "$f" >"$T/ldd" 2>/dev/null
	n=$((n + 1))
	while read -r name arrow path rest; do
		[ "$arrow" = "=>" ] || continue
		case $name in libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | ld-linux* | libcuda.so.* | libcublas*) continue ;; esac
		case $(cd "$(dirname "$path")" 2>/dev/null && pwd) in
		"$P"/lib) ;;
		*) fail "$(basename "$f") takes $name from ${path:-nowhere} $rest" ;;
		esac
	done <"$T/ldd"
done
# the CUDA module's libraries are that machine's; of its own it needs nothing
if [ -e "$P/lib/tandem-cuda.so" ]; then
	for name in $(readelf -d "$P/lib/tandem-cuda.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
		case $name in libc.so.* | libm.so.* | ld-linux* | libpthread.so.* | libdl.so.* | librt.so.* | libcuda.so.* | libcublas*) ;; *) fail "tandem-cuda.so needs $name" ;; esac
	done
fi
[ "$n" -ge 10 ] || fail "the bundle holds only $n programs"
for f in models/tiny/tokenizer.json tests/run.sh README.md LICENSE lib/libtandem.so.0; do
	[ -r "$P/$f" ] || fail "$f is not in the bundle"
done

# it serves from where it was moved to
QUESTION="What does grep do?" DEVICE=cpu B= sh "$P/tools/demo.sh" >"$T/said" 2>&1 || fail "the demo fails in the bundle: $(cat "$T/said")"
grep -q "acceptance length" "$T/said" || fail "the demo tells no figures: $(cat "$T/said")"

# a root with nothing in it but the C library and the bundle (needs the right to chroot)
mkdir -p "$T/root/lib64" "$T/root/lib/x86_64-linux-gnu" "$T/root/tmp"
cp -L /lib64/ld-linux-x86-64.so.2 "$T/root/lib64/"
for l in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1; do
	for d in /lib/x86_64-linux-gnu /lib64 /usr/lib64; do
		[ -e "$d/$l" ] && { cp -L "$d/$l" "$T/root/lib/x86_64-linux-gnu/"; break; }
	done
done
mv "$P" "$T/root/bundle"
export LD_ORIGIN_PATH=/bundle/bin # what $ORIGIN is, where /proc is not there to tell
if chroot "$T/root" /bundle/bin/tandem --version >"$T/said" 2>&1; then
	for p in tandemd tandem; do
		chroot "$T/root" "/bundle/bin/$p" --version >"$T/said" 2>&1 || fail "$p does not start in an empty root: $(cat "$T/said")"
	done
	for p in target drafter; do
		chroot "$T/root" "/bundle/bin/tandem-$p" >"$T/said" 2>&1
		[ $? = 2 ] || fail "tandem-$p does not start in an empty root: $(cat "$T/said")"
	done
elif [ "$(id -u)" = 0 ] && chroot / true 2>/dev/null; then
	fail "tandem does not start in an empty root: $(cat "$T/said")"
else
	echo "left out: the run in an empty root needs the right to chroot"
fi
exit 0
