# limit: 60
# docs/examples/hello.c compiles as C and as C++ would see the header, against the shared library alone, and gives an answer; the library exports its API only.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
SAN=
[ "$B" != build-san ] || SAN="-fsanitize=address,undefined"
mkdir "$T/include" "$T/lib"
cp "$ROOT/client/tandem.h" "$T/include/"
cp "$ROOT/$B/libtandem.so.0" "$T/lib/"
ln -s libtandem.so.0 "$T/lib/libtandem.so"
${CC:-gcc} -std=c99 -pedantic -Wall -Wextra -Werror $SAN -I"$T/include" "$ROOT/docs/examples/hello.c" -L"$T/lib" -ltandem -o "$T/hello" || fail "hello.c"
if command -v g++ >/dev/null; then
	echo '#include <tandem.h>' >"$T/x.cc"
	g++ -Wall -Wextra -Werror -I"$T/include" -c "$T/x.cc" -o "$T/x.o" || fail "the header as C++"
fi
nm -D --defined-only "$T/lib/libtandem.so.0" | awk '$2 == "T" {print $3}' | sed 's/@.*//' | sort >"$T/exported"
grep -v '^tandem_[a-z]' "$T/exported" && fail "exported, and not part of the API"
grep '^tandem__' "$T/exported" && fail "protobuf is exported"
# What the header declares is what the library exports.
tr '\n' ' ' <"$ROOT/client/tandem.h" | grep -o 'tandem_[a-z_]*(' | tr -d '(' | sort -u >"$T/named"
comm -13 "$T/named" "$T/exported" | grep . && fail "exported without a declaration"
LD_LIBRARY_PATH="$T/lib" "$T/hello" >"$OUT" 2>"$T/err" && fail "hello without a daemon"
grep -q "no daemon at" "$T/err" || fail "hello: $(cat "$T/err")"
real
LD_LIBRARY_PATH="$T/lib" "$T/hello" "How do I list files?" >"$OUT" 2>"$T/err" || fail "hello: $(cat "$T/err")"
[ -s "$OUT" ] || fail "hello gave no answer"
stop
