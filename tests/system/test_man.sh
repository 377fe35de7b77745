#!/bin/sh
# Man pages and the configuration reference say what the programs know, no more and no less: every command, option, setting and function. The pages are
# those that tools/reference.sh makes, and well formed.
# limit: 60
. "$(dirname "$0")/tree_lib.sh"
BIN=$B/bin
# same WHAT SAID KNOWN: two files with one word a line, in any order
same() {
	sort -u "$2" >"$T/a"
	sort -u "$3" >"$T/b"
	diff "$T/a" "$T/b" >"$T/diff" || fail "$1: said (<) and known (>) differ: $(cat "$T/diff")"
	[ -s "$T/b" ] || fail "$1: nothing is known"
}

# what was made is what would be made
mkdir "$T/man" "$T/docs"
sh tools/reference.sh "$BIN" "$T" || fail "tools/reference.sh"
for f in man/tandem.1 man/tandemd.8 man/tandem.ini.5 docs/configuration.md; do
	cmp -s "$f" "$T/$f" || fail "$f is not up to date: sh tools/reference.sh $BIN . ; $(diff "$f" "$T/$f" | head -n 6)"
done

# settings, from --help and read apart from tools/reference.sh: in both pages, and in no page that --help doesn't have
"$BIN/tandemd" --help | awk '/^\[/ { s = $0; sub(/^\[/, "", s); sub(/\].*/, "", s); next } s != "" && /^[* ] [a-z]/ { print s "." ($1 == "*" ? $2 : $1) }' >"$T/known"
[ "$(wc -l <"$T/known")" -ge 50 ] || fail "tandemd --help lists few settings: $(wc -l <"$T/known")"
"$BIN/tandemd" --settings | awk -F '\t' '{ print $1 "." $2 }' >"$T/said"
same "tandemd --settings" "$T/said" "$T/known"
awk '/^\.Ss \[/ { s = $0; sub(/^\.Ss \[/, "", s); sub(/\].*/, "", s) } /^\.It Cm / && s != "" { print s "." $3 } /^\.Sh / { s = "" }' man/tandem.ini.5 >"$T/said"
same "tandem.ini(5)" "$T/said" "$T/known"
awk '/^### `\[/ { s = $0; sub(/^### `\[/, "", s); sub(/\].*/, "", s) } /^## / { s = "" } s != "" && /^\| `/ { n = $2; gsub(/`/, "", n); print s "." n }' docs/configuration.md >"$T/said"
same "docs/configuration.md" "$T/said" "$T/known"
# every one with an example, and every example is a value that it takes
cut -f 1 tools/reference/settings >"$T/said"
same "tools/reference/settings" "$T/said" "$T/known"
awk -F '\t' '{ s = k = $1; sub(/\.[a-z_]*$/, "", s); sub(/.*\./, "", k); if ($2 !~ "^" k " = .") { print "no example of " $1 > "/dev/stderr"; exit 1 }
	sub(/NAME/, "example", s); print "[" s "]\n" $2 }' tools/reference/settings >"$T/ini" || fail "an example is missing"
"$BIN/tandemd" --config "$T/ini" --settings >"$T/out" 2>&1 || fail "an example is refused: $(cat "$T/out")"

# commands and their options
"$BIN/tandem" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' >"$T/commands"
sed -n '/^\.Sh COMMANDS/,/^\.Sh JSON/s/^\.Ss //p' man/tandem.1 >"$T/said"
same "tandem(1): commands" "$T/said" "$T/commands"
while read -r c; do
	"$BIN/tandem" "$c" --help | grep -o '^  \(-.,\|   \) --[a-z-]*' | sed 's/.* --//' >"$T/known"
	sed -n "/^\.Ss $c\$/,/^\.S[sh] /s/^\.It \(Fl . , \)\{0,1\}Fl -\([a-z-]*\).*/\2/p" man/tandem.1 >"$T/said"
	same "tandem(1): $c" "$T/said" "$T/known"
done <"$T/commands"
"$BIN/tandemd" --help | sed -n 1p | grep -o -- '--[a-z]*' | grep -vx -- --section >"$T/known"
sed -n 's/^\.It Fl -\([a-z]*\)\( .*\)*$/--\1/p' man/tandemd.8 | grep -vx -- '--\|--help' >"$T/said"
same "tandemd(8)" "$T/said" "$T/known"

# functions of the library
sed -n 's/^\t\t\(tandem_[a-z_]*\);/\1/p' client/libtandem.map >"$T/known"
sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/^\.F[no] \(tandem_[a-z_]*\).*/\1/p' man/libtandem.3 >"$T/said"
same "libtandem(3)" "$T/said" "$T/known"

# form, and what they refer to
for f in man/*.[1-9]; do
	if command -v mandoc >/dev/null; then
		mandoc -Tlint -W warning "$f" >"$T/out" 2>&1
		[ ! -s "$T/out" ] || fail "mandoc: $(cat "$T/out")"
	elif command -v groff >/dev/null; then
		groff -ww -mandoc -Tascii "$f" 2>"$T/out" >/dev/null
		[ ! -s "$T/out" ] || fail "groff: $(cat "$T/out")"
	fi
	sed -n 's/^\.Xr \([a-z.]*\) \([0-9]\).*/\1.\2/p' "$f" | grep -vx 'free\.3' | while read -r page; do
		[ -e "man/$page" ] || fail "$f refers to $page, which is not there"
	done || exit 1
done
