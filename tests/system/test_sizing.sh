#!/bin/sh
# docs/sizing.md tells what tandemd --check says: some cells of its table, and the example with engine.kv_tokens.
# limit: 60
. "$(dirname "$0")/tree_lib.sh"
in_all() { # options...: GiB
	"$B/bin/tandemd" --synthetic qwen3.5-4b --engine.device=cuda --tandem.socket="$T/s" --tandem.runtime_dir="$T/run" "$@" --check 2>&1 |
		sed -n 's/.*in all: \([0-9.]*\) GiB.*/\1/p'
}
cell() { # slots, column
	sed -n "s/^| $1 | \(.*\) |\$/\1/p" docs/sizing.md | tr -d ' ' | cut -d '|' -f "$2"
}
for c in "1 1 4096" "4 2 8192" "8 4 32768" "16 5 65536"; do
	set -- $c
	said=$(in_all --engine.slots="$1" --engine.context="$3")
	[ -n "$said" ] && [ "$said" = "$(cell "$1" "$2")" ] || fail "$1 slots of $3 tokens: tandemd says '$said' GiB, docs/sizing.md '$(cell "$1" "$2")'"
done
said=$(in_all --engine.slots=8 --engine.context=32768 --engine.kv_tokens=65536)
grep -q "for $(printf '%.1f' "$said") GiB instead of $(printf '%.1f' "$(cell 8 4)")" docs/sizing.md || fail "the example with engine.kv_tokens takes $said GiB"
