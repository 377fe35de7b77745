# limit: 240
# alone
# The prefix cache through the daemon, with the real workers and the shipped model: a second turn after a long history begins much earlier and answers as
# it does without a cache; usage says what came from it; it can be turned off; a worker's death drops it and nothing else.
#
#	HISTORY=tokens	length of the first prompt (about 1200; the model has room for 3900)
#	TURNS=n		how many conversations are measured (3)
#	CHUNK=tokens	engine.chunk (64; from 256 on units are of 256 tokens)
. "$(dirname "$0")/daemon_lib.sh"
[ -x "$BIN/tandem-target" ] && [ -x "$BIN/tandem-drafter" ] || fail "the workers are not built"
WORKER=$BIN/tandem-target
: "${HISTORY:=1200}" "${TURNS:=3}" "${CHUNK:=64}"
export PATH="$BIN:$PATH" TANDEM_SOCKET="$SOCK"
serve() {
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=2 --engine.context=4096 --engine.chunk="$CHUNK" "$@"
	tandem status --wait=60 >"$OUT" 2>&1 || fail "not ready"
}
# prompt of conversation $1: its number, then text of the repository, so many words as make the tokens wanted
words=$((HISTORY * 10 / 15))
prompt() {
	printf 'conversation %d. ' "$1"
	cat "$ROOT"/docs/*.md "$ROOT"/README.md | tr -cs 'A-Za-z.,' ' ' | cut -d ' ' -f "$(($1 * 40 + 1))-$(($1 * 40 + words))"
}
ask() { # name, prompt: the answer as JSON in $T/name
	tandem run --raw --json --max-tokens=8 --ignore-eos "$2" >"$T/$1" 2>"$OUT" || fail "no answer: $(cat "$OUT" "$T/$1")"
}
field() { # name of the answer, field
	sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$T/$1"
}
ids() {
	sed -n 's/.*"ids":\(\[[^]]*\]\).*/\1/p' "$T/$1"
}
median() {
	sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

serve
for i in $(seq "$TURNS"); do
	ask "first$i" "$(prompt "$i")"
	text=$(sed -n 's/.*"text":"\([^"\\]*\).*/\1/p' "$T/first$i")
	prompt "$i" >"$T/prompt$i"
	printf '%s And what comes next?' "$text" >>"$T/prompt$i"
	ask "second$i" "$(cat "$T/prompt$i")"
	[ "$(field "first$i" cached_tokens)" = 0 ] || fail "conversation $i began in the cache: $(cat "$T/first$i")"
	n=$(field "second$i" prompt_tokens) cached=$(field "second$i" cached_tokens) computed=$((n - cached))
	[ $((computed * 10)) -le "$(field "first$i" prompt_tokens)" ] || fail "conversation $i: $computed of $n tokens were computed again"
	for turn in first second; do
		field "$turn$i" prefill_us >>"$T/us_$turn"
		[ "$(field "$turn$i" gpu_us)" -gt 0 ] || fail "nobody paid: $(cat "$T/$turn$i")"
	done
done
first=$(median <"$T/us_first") second=$(median <"$T/us_second")
echo "prompts of $(field first1 prompt_tokens) tokens; next turn: $(field second1 prompt_tokens), $(field second1 cached_tokens) of them cached"
echo "first token, median of $TURNS: $((first / 1000)) ms, next turn $((second / 1000)) ms: $((first * 10 / second))/10 times earlier"
[ "$first" -ge $((second * 5)) ] || fail "the next turn's first token is only $((first * 10 / second))/10 times earlier"
tandem status --json >"$T/status" || fail "no status"
grep -q '"prefix"' "$T/status" || fail "status says nothing of the cache: $(cat "$T/status")"

# a dead worker takes the cache with it
kill -9 "$(pgrep -P "$PID" -f tandem-target)" || fail "no target to kill"
tandem status --wait=60 >"$OUT" 2>&1
ask after "$(cat "$T/prompt1")"
[ "$(field after cached_tokens)" = 0 ] || fail "a cache that outlived its worker: $(cat "$T/after")"
[ "$(ids after)" = "$(ids second1)" ] || fail "another answer after the worker's death"
ask again "$(cat "$T/prompt1")"
[ "$(field again cached_tokens)" -gt 0 ] || fail "nothing is cached any more"
[ "$(ids again)" = "$(ids second1)" ] || fail "another answer from the new cache"
stop

serve --engine.prefix_cache=off
for i in 1 2; do
	ask plain "$(cat "$T/prompt$i")"
	[ "$(field plain cached_tokens)" = 0 ] || fail "off, and yet: $(cat "$T/plain")"
	[ "$(ids plain)" = "$(ids "second$i")" ] || fail "conversation $i: another answer without a cache: $(ids plain), $(ids "second$i")"
done
stop
