# limit: 120
# The connection is cut again and again while an answer comes: the client resumes, and the text and the ids are those of an undisturbed answer.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
real
Q="Give me a short guide to the grep command."
"$TANDEM" run --no-think -g --ignore-eos -n 40 --json "$Q" >"$T/whole" || fail "undisturbed"
ids() {
	sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/' "$1"
}
text() {
	sed 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/' "$1"
}
# Cuts that fall at all sorts of places: within the head of a frame, within its text, between frames.
for bytes in 150 177 190 211; do
	"$TOOLS/cut_proxy" "$T/p" "$SOCK" $bytes 4 >"$T/cuts" &
	proxy=$!
	for i in $(seq 1200); do [ -S "$T/p" ] && break; sleep 0.05; done
	code 0 run --socket "$T/p" --no-think -g --ignore-eos -n 40 --json "$Q"
	kill $proxy
	wait $proxy 2>/dev/null
	rm -f "$T/p"
	[ "$(wc -l <"$T/cuts")" -ge 2 ] || fail "cut after $bytes bytes: only $(wc -l <"$T/cuts") cuts"
	[ "$(ids "$OUT")" = "$(ids "$T/whole")" ] || fail "cut after $bytes bytes: other ids"
	[ "$(text "$OUT")" = "$(text "$T/whole")" ] || fail "cut after $bytes bytes: another text: $(text "$OUT")"
	grep -q '"resumes":[1-9]' "$OUT" || fail "cut after $bytes bytes: nothing was resumed"
done
# The daemon ends in the middle: an error, not a hang (no one to reconnect to: it tries for ten seconds).
rm -f "$OUT" # it has the last answer, which must not pass for the beginning of this one
"$TANDEM" run --no-think -g --ignore-eos -n 400 "$Q" >"$OUT" 2>"$T/err" &
P=$!
for i in $(seq 1200); do [ -s "$OUT" ] && break; sleep 0.05; done
kill -9 "$PID"
wait $P
got=$?
[ $got = 3 ] || fail "the daemon died: exit code $got: $(cat "$T/err")"
one_line "closed"
PID=
