#!/bin/sh
# make install into a folder: the daemon runs from there and finds its workers, a small C program is built by pkg-config and gets an answer.
# limit: 240
. "$(dirname "$0")/tree_lib.sh"
[ "$B" = build-san ] && SAN=1 || SAN=0

make -s install SAN=$SAN DESTDIR="$T/the stage" PREFIX=/opt/tandem >"$T/said" 2>&1 || fail "make install: $(cat "$T/said")"
[ "$(ls "$T/the stage")" = opt ] || fail "something lies outside the prefix: $(ls "$T/the stage")"
# Packages are unpacked elsewhere: nothing may depend on where it was staged.
mv "$T/the stage/opt/tandem" "$T/moved"
P=$T/moved
for f in bin/tandemd bin/tandem lib/tandem/tandem-target lib/tandem/tandem-drafter lib/libtandem.a lib/libtandem.so lib/libtandem.so.0 include/tandem.h \
	lib/pkgconfig/libtandem.pc share/tandem/tandem.ini share/tandem/models/tiny/target-int4/model.safetensors share/doc/tandem/LICENSE \
	share/man/man1/tandem.1 share/man/man8/tandemd.8 share/man/man5/tandem.ini.5 share/man/man3/libtandem.3 share/bash-completion/completions/tandem \
	share/bash-completion/completions/tandemd share/zsh/site-functions/_tandem share/fish/vendor_completions.d/tandem.fish; do
	[ -r "$P/$f" ] || fail "$f was not installed"
done
for f in docs/*.md; do # what a page links to lies beside it
	for link in $(grep -o '](\([^)#]*\)' "$f" | sed 's/^](//' | grep -v -e '^[a-z]*:' -e '^$'); do
		[ -r "$P/share/doc/tandem/$link" ] || fail "$f links to $link, which was not installed"
	done
done
[ ! -e "$P/bin/tandem-target" ] || fail "a worker lies among the programs that people start"
! grep -rlI "$T/the stage" "$P" || fail "the staging folder's name was written into a file"
grep -q '^target = /opt/tandem/share/' "$P/share/tandem/tandem.ini" || fail "the example configuration does not name the installed model"
[ "$("$P/bin/tandem" --version)" = "$("$B/bin/tandem" --version)" ] || fail "the installed tandem has another version"

# the daemon, from there, with the installed example configuration
sed -i "s|/opt/tandem|$P|" "$P/share/tandem/tandem.ini"
export TANDEM_SOCKET="$T/s"
cd / || exit 1
"$P/bin/tandemd" --config "$P/share/tandem/tandem.ini" --tandem.socket="$T/s" --tandem.runtime_dir="$T/run" --engine.device=cpu --engine.context=512 2>"$T/log" &
PID=$!
"$P/bin/tandem" status --wait 100 >"$T/said" 2>&1 || fail "the installed daemon does not become ready: $(cat "$T/said")"
for w in target drafter; do
	ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q "$P/lib/tandem/tandem-$w\$" || fail "tandem-$w does not run from lib/tandem"
done

# a program of somebody else's
export PKG_CONFIG_PATH="$P/lib/pkgconfig"
"$P/bin/tandem" --version | grep -qwF "$(pkg-config --modversion libtandem)" || fail "libtandem.pc tells version $(pkg-config --modversion libtandem)"
[ $SAN = 1 ] && san=-fsanitize=address,undefined || san=
cat >"$T/client.c" <<'EOF'
#include <stdio.h>
#include <string.h>
#include <tandem.h>

int main(void)
{
	struct tandem_error err;
	struct tandem *t = tandem_connect(NULL, NULL, &err);
	struct tandem_ids ids = {0};

	if (!t || tandem_tokenize(t, &(struct tandem_prompt){.text = "hello world"}, &ids, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	printf("%s %zu\n", tandem_version(), ids.n);
	tandem_ids_free(&ids);
	tandem_close(t);
	return strcmp(tandem_version(), TANDEM_VERSION) != 0;
}
EOF
flags=$(pkg-config --cflags --libs libtandem) || fail "pkg-config does not find libtandem"
cc -std=c99 -Wall -Wextra -Werror $san "$T/client.c" $flags -o "$T/client" 2>"$T/said" || fail "the client does not compile: $(cat "$T/said")"
readelf -d "$T/client" | grep -q 'NEEDED.*libtandem.so.0' || fail "the client is not linked with the shared library"
LD_LIBRARY_PATH=$P/lib "$T/client" >"$T/said" 2>&1 || fail "the client fails: $(cat "$T/said")"
[ "$(cut -d ' ' -f 2 "$T/said")" -ge 2 ] || fail "the client says: $(cat "$T/said")"
cc -std=c99 $san "$T/client.c" -I"$P/include" "$P/lib/libtandem.a" $(pkg-config --libs libprotobuf-c) -o "$T/static" 2>"$T/said" ||
	fail "the client does not link with the static library: $(cat "$T/said")"
"$T/static" >/dev/null || fail "the static client fails"
echo 'int main(void) { return tandem_version() == 0; }' | cat "$P/include/tandem.h" - >"$T/plus.cc"
c++ -std=c++11 -Wall -Werror -c "$T/plus.cc" -o "$T/plus.o" 2>"$T/said" || fail "tandem.h is no C++: $(cat "$T/said")"
cc -std=c99 -Wall -Werror $san "$ROOT/docs/examples/hello.c" $flags -o "$T/hello" 2>"$T/said" || fail "docs/examples/hello.c does not compile: $(cat "$T/said")"
LD_LIBRARY_PATH=$P/lib "$T/hello" "What does grep do?" >"$T/said" 2>&1 || fail "hello fails: $(cat "$T/said")"
[ "$(wc -c <"$T/said")" -ge 10 ] || fail "hello got no answer"

kill -TERM "$PID"
wait "$PID" || fail "the daemon ended with code $?"
PID=
