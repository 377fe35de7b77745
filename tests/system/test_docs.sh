#!/bin/sh
# What README and docs say exists: links, folders, commands, settings of the example configuration.
# limit: 60
: "${ROOT:=$(cd "$(dirname "$0")/../.." && pwd)}" "${B:=build}"
cd "$ROOT" || exit 1
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
bad=0
fail() {
	echo "FAIL: $*"
	bad=1
}

for f in README.md CONTRIBUTING.md CHANGELOG.md LICENSE bench/LOG.md docs/architecture.md docs/errors.md docs/configuration.md docs/metrics.md docs/bench.md docs/quickstart.md docs/operations.md docs/sizing.md docs/scaling.md models/tiny/README.md; do
	[ -s "$f" ] || fail "$f is not there"
done

# relative links
for f in *.md docs/*.md models/tiny/*.md bench/*.md; do
	for link in $(grep -o '](\([^)#]*\)' "$f" | sed 's/^](//' | grep -v '^[a-z]*:'); do
		[ -e "$(dirname "$f")/$link" ] || fail "$f links to $link, which is not there"
	done
done

# paths in backquotes that begin with a folder of the tree
for f in README.md CONTRIBUTING.md docs/architecture.md; do
	for path in $(grep -o '`[a-z_.]*/[A-Za-z0-9_./-]*`' "$f" | tr -d '`' | sort -u); do
		[ -d "${path%%/*}" ] && [ "${path%%/*}" != build ] || continue
		[ -e "$path" ] || fail "$f names $path, which is not there"
	done
done
for dir in $(sed -n 's/^| `\([a-z_]*\)\/` |.*/\1/p' docs/architecture.md); do
	[ -d "$dir" ] || fail "docs/architecture.md lists $dir/, which is not there"
done

# every command of tandem, and nothing else, is told in README
"$B/bin/tandem" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' >"$T/commands"
[ "$(wc -l <"$T/commands")" -ge 6 ] || fail "tandem --help lists only: $(tr '\n' ' ' <"$T/commands")"
while read -r c; do
	grep -q "^    tandem $c" README.md || fail "README.md does not tell about tandem $c"
	"$B/bin/tandem" "$c" --help >/dev/null || fail "tandem $c --help ends with an error"
done <"$T/commands"
for c in $(sed -n 's/^    tandem \([a-z]*\).*/\1/p' README.md); do
	grep -qx "$c" "$T/commands" || fail "README.md tells about tandem $c, which tandem does not know"
done

# settings that README names, and the example configuration as a whole
"$B/bin/tandemd" --help >"$T/settings" || fail "tandemd --help ends with an error"
for s in $(grep -o '`\(model\|engine\|limits\|defaults\)\.[a-z_]*`' README.md | tr -d '`' | sort -u); do
	sed -n "/^\[${s%.*}\]/,/^\$/p" "$T/settings" | grep -q "^[* ] ${s#*.} " || fail "README.md names the setting $s, which tandemd does not know"
done
sed "s|@PREFIX@/share/tandem|$ROOT|; s|^; \(name\|socket\) = .*||" docs/examples/tandem.ini >"$T/ini"
"$B/bin/tandemd" --config "$T/ini" --check --tandem.runtime_dir="$T/run" --tandem.socket="$T/sock" --engine.device=cpu >"$T/said" 2>&1 ||
	fail "docs/examples/tandem.ini is refused: $(cat "$T/said")"

exit $bad
