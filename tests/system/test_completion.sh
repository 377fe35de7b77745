#!/bin/bash
# The shells complete every command, option and setting that tandem and tandemd know, and none that they don't; the files are those that
# tools/completion.sh makes. zsh and fish are looked at where they are installed.
# limit: 60
[ -n "$BASH_VERSION" ] || exec bash "$0" "$@" # the runner starts it by sh
. "$(dirname "$0")/tree_lib.sh"
BIN=$B/bin
# same WHAT IS WANTED: two lists with one word a line, in any order
same() {
	diff <(sort "$2") <(sort "$3") >"$T/diff" || fail "$1: completed (<) and known (>) differ: $(cat "$T/diff")"
}

mkdir "$T/made"
sh tools/completion.sh "$BIN" "$T/made" || fail "tools/completion.sh"
for f in tandem.bash _tandem tandem.fish; do
	cmp -s "$T/made/$f" "completion/$f" || fail "completion/$f is not up to date: sh tools/completion.sh $BIN completion; $(diff "completion/$f" "$T/made/$f" | head -n 5)"
done

# bash, as it would be asked: complete WORD... is what may stand for the last one.
. completion/tandem.bash || fail "bash does not take it"
complete_words() {
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	COMPREPLY=()
	"_$1"
	[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
}
"$BIN/tandem" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' >"$T/commands"
[ "$(wc -l <"$T/commands")" -ge 8 ] || fail "tandem --help lists only: $(tr '\n' ' ' <"$T/commands")"
complete_words tandem "" | grep -v '^help$\|^-' >"$T/is"
same "commands" "$T/is" "$T/commands"
while read -r c; do
	# What the help text says, read another way than tools/completion.sh does; each word is also taken by the program, as far as that can be seen.
	"$BIN/tandem" "$c" --help | grep -o '^  \(-.,\|   \) --[a-z-]*' | tr -d ' ' | tr ',' '\n' >"$T/wanted"
	complete_words tandem "$c" "" >"$T/is"
	same "tandem $c" "$T/is" "$T/wanted"
	while read -r o; do
		! "$BIN/tandem" "$c" "$o" --help 2>&1 </dev/null | grep -q 'there is no option' || fail "tandem $c does not know $o"
		complete_words tandem "$c" "${o%?}" | grep -qx -- "$o" || fail "tandem $c ${o%?}: $o is not completed"
	done <"$T/is"
	[ -z "$(complete_words tandem "$c" --nonsense)" ] || fail "tandem $c --nonsense is completed"
done <"$T/commands"
[ "$(complete_words tandem bench --device cu)" = cuda ] || fail "values of --device"
[ "$(complete_words tandem top --sort acc)" = accept ] || fail "values of --sort"
[ -z "$(complete_words tandem run --seed "")" ] || fail "something is proposed for a number"
touch "$T/prompts.json"
[ "$(complete_words tandem bench --prompts "$T/pro")" = "$T/prompts.json" ] || fail "files"

# tandemd: the settings of --help, each of which the command line takes.
"$BIN/tandemd" --help | awk '/^\[/ { s = /^\[[a-z]*\]$/ ? substr($1, 2, length($1) - 2) : ""; next } s != "" && /^[* ] [a-z]/ { print "--" s "." ($1 == "*" ? $2 : $1) "=" }' >"$T/wanted"
[ "$(wc -l <"$T/wanted")" -ge 40 ] || fail "tandemd --help lists few settings"
complete_words tandemd "" | grep '[.]' >"$T/is"
same "tandemd" "$T/is" "$T/wanted"
[ "$(complete_words tandemd --engine.device = cu)" = cuda ] || fail "values of engine.device"
[ "$(complete_words tandemd --engine.mps = | tr '\n' ' ')" = "auto on off " ] || fail "values of engine.mps"

if command -v zsh >/dev/null; then
	zsh -n completion/_tandem || fail "zsh does not take it"
fi
if command -v fish >/dev/null; then
	HOME=$T fish -c 'source completion/tandem.fish; complete -C "tandem "' | cut -f 1 >"$T/is" || fail "fish does not take it"
	same "fish: commands" "$T/is" "$T/commands"
	while read -r c; do
		HOME=$T fish -c "source completion/tandem.fish; complete -C 'tandem $c --'" | cut -f 1 | sed 's/=$//' | grep -vx -- --help | sort -u >"$T/is"
		"$BIN/tandem" "$c" --help | grep -o '^  \(-.,\|   \) --[a-z-]*' | sed 's/.* //' | grep -vx -- --help >"$T/wanted"
		same "fish: tandem $c" "$T/is" "$T/wanted"
	done <"$T/commands"
fi
