# limit: 60
# Whoever waits is told on a terminal how many go first, and nowhere else; bands are chosen on the command line.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
FAKE_TARGET=step_us=5000 start --engine.slots=1
"$TANDEM" status --wait 60 >"$OUT" 2>"$T/err" || fail "the daemon isn't ready: $(cat "$T/err")"

"$TOOLS/rawclient" "$SOCK" >"$T/raw" 2>&1 <<'END' &
greet 0
gen tag=1 ids=300,301 max_tokens=3000 ignore_eos=1 draft_tokens=0 stream=0
expect "accepted"
gen tag=2 ids=300,301 max_tokens=5 ignore_eos=1 stream=0
expect "accepted"
sleep 2500
cancel target=1
until "tag=2 finish"
END
RAW=$!
tries=0
until grep -q 'tag=2 accepted' "$T/raw"; do
	tries=$((tries + 1))
	[ $tries -lt 400 ] || fail "nothing runs: $(cat "$T/raw")"
	sleep 0.05
done
"$TANDEM" run --band batch -n 4 "some words" >"$T/piped" 2>"$T/piped.err" &
PIPED=$!
"$TOOLS/pty_run" "$TANDEM" run -n 4 "some words" -- "expect:waiting, 1 before you" "expect:\r\e[K" >"$OUT" 2>"$T/err" || fail "code $?: $(cat "$T/err" "$OUT")"
wait $PIPED || fail "a request that waited: $(cat "$T/piped.err")"
[ -s "$T/piped" ] || fail "no answer"
[ ! -s "$T/piped.err" ] || fail "places are told where there is no terminal: $(cat "$T/piped.err")"
wait $RAW || fail "$(tail -n 3 "$T/raw")"
code 2 run --band quick "some words"
one_line "option --band takes interactive or batch, not 'quick'"
code 0 run --band interactive --no-cache -n 4 "some words"
code 3 run --tenant nobody --socket "$T/none" "some words"
stop
echo "places are told"
