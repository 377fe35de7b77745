# limit: 300
# tandem bench --tune: measures, keeps a file, and tandemd chooses by it: fewer drafts for greedy requests that don't say how many, nobody else.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
export TMPDIR="$T" OPENBLAS_NUM_THREADS=1
MODEL="--model $ROOT/models/tiny/target-int4 --drafter $ROOT/models/tiny/drafter-int4 --device cpu --context 256"

code 0 bench --tune $MODEL --max-clients 1 --widths "$T/widths"
shows "milliseconds of a cycle"
shows "kept in $T/widths/widths-"
[ "$(ls "$T/widths" | wc -l)" = 1 ] && FILE=$(ls "$T/widths"/widths-*.json) || fail "not one file: $(ls "$T/widths")"
[ "$(grep -c '"us": [0-9.]*' "$FILE")" = 7 ] || fail "not seven times: $(cat "$FILE")"
[ -z "$(find "$T" -name 'tandem-bench*')" ] || fail "a daemon's folder was left behind"

# As if one draft cost nothing and any other number the world.
awk '/"drafts"/ { one = $2 == "1," } /"us"/ { sub(/[0-9.e+]+/, one ? "1" : "1e8") } { print }' "$FILE" >"$T/edited" && mv "$T/edited" "$FILE"

real --engine.context=256 --engine.threads=0 --engine.widths="$T/widths"
grep -q 'drafts per step by requests in it: 1: 1,' "$LOG" || fail "the table is not used: $(grep -i 'drafts per' "$LOG")"
ask() { # what
	"$TANDEM" run --json --no-think -n 24 "$@" "Show me examples of rsync." >"$OUT" 2>"$T/err" || fail "$(cat "$T/err")"
	drafted=$(tr -d ' \n' <"$OUT" | grep -o '"drafted":[0-9]*' | head -n 1 | cut -d : -f 2) cycles=$(tr -d ' \n' <"$OUT" | grep -o '"cycles":[0-9]*' | head -n 1 | cut -d : -f 2)
	[ "$cycles" -gt 3 ] || fail "$cycles cycles: $(cat "$OUT")"
}
ask -g
[ "$drafted" -le "$cycles" ] && [ "$drafted" -gt 0 ] || fail "$drafted drafts in $cycles cycles, greedily"
ask -g --draft-tokens 4
[ "$drafted" -gt $((2 * cycles)) ] || fail "$drafted drafts in $cycles cycles, though four were asked for"
ask --seed 7 --temperature 0.8
[ "$drafted" -gt $((2 * cycles)) ] || fail "$drafted drafts in $cycles cycles: a seed's answer would hang on the company"
stop

# Off, and a file that is none of ours.
real --engine.context=256 --engine.threads=0 --engine.widths=off
ask -g
[ "$drafted" -gt $((2 * cycles)) ] || fail "$drafted drafts in $cycles cycles, with widths = off"
stop
echo '{}' >"$FILE"
real --engine.context=256 --engine.threads=0 --engine.widths="$T/widths"
grep -q "not a table of this device" "$LOG" || fail "a damaged table is not told"
stop

code 2 bench --tune
one_line "needs --model"
code 2 bench --tune cycle $MODEL
one_line "of its own"
