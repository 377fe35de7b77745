# limit: 120
# tandem run, status and tokenize against the real daemon: arguments, stdin, JSON, exit codes, Ctrl-C.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"

# Without a daemon: one clear line, exit code 3.
for c in "run hi" "status" "tokenize hi" "chat" "bench"; do
	code 3 $c
	one_line "no daemon at $SOCK"
done
code 3 run --socket "$T/elsewhere" hi
one_line "no daemon at $T/elsewhere"
code 3 run --socket "/$(printf '%0200d' 1)" hi
one_line "allows 107"
: >"$T/file"
for f in "$T/file" "$T"; do
	code 3 run --socket "$f" hi
	one_line "$f is not a socket"
done

# Wrong usage: one line, exit code 2, nothing on stdout.
for c in "run --no-such x" "run --max-tokens" "run --max-tokens=x x" "run --top-p=. x" "run --raw=1 x" "run --raw --think x" "run --bias 5 x" "run --stop-id a x" \
	"status x" "tokenize --think x" "tokenize -d --chat 1" "chat x" "bench --max-tokens 0" "bench --clients 0" "bench x" "doctor x" "nothing"; do
	code 2 $c
	[ "$(wc -l <"$T/err")" = 1 ] || fail "$c: $(cat "$T/err")"
	[ ! -s "$OUT" ] || fail "$c wrote to stdout"
done
# An empty prompt is no question, wherever it comes from: a model would invent one.
for p in '' ' ' '
'; do
	code 2 run "$p"
	one_line "the prompt is empty"
	[ ! -s "$OUT" ] || fail "an empty prompt gave something"
done
code 2 run --raw ''
one_line "the prompt is empty"
"$TANDEM" run </dev/null >"$OUT" 2>"$T/err"
[ $? = 2 ] || fail "empty stdin is not exit code 2"
one_line "the prompt is empty"
code 2
for c in run chat status tokenize doctor bench; do
	code 0 $c --help
	shows "usage: tandem $c"
	shows "Exit codes"
	cp "$OUT" "$T/help"
	code 0 help $c
	cmp -s "$OUT" "$T/help" || fail "tandem help $c is not tandem $c --help"
	[ "$(wc -L <"$OUT")" -le 155 ] || fail "tandem $c --help has long lines"
done
code 0 --version
shows "^tandem [0-9.]* (libtandem [0-9.]*)$"

real
code 0 status
shows "slots    0 of 4 in use"
shows "^drafter  ready"
code 0 status --json
shows '"state": "ready"'

# The same answer by argument, by words, by stdin, and by both.
Q="How do I list the files of a directory?"
code 0 run --no-think -g -n 24 "$Q"
cp "$OUT" "$T/first"
code 0 status
! grep -q "CPU per cycle" "$OUT" || fail "after so few cycles the CPU time is that of connections"
cp "$T/first" "$OUT"
[ -s "$OUT" ] || fail "no answer"
cp "$OUT" "$T/answer"
code 0 run --no-think -g -n 24 $Q
cmp "$OUT" "$T/answer" || fail "words are not joined"
printf %s "$Q" | "$TANDEM" run --no-think -g -n 24 >"$OUT" 2>"$T/err" || fail "stdin"
cmp "$OUT" "$T/answer" || fail "stdin gives another answer"
printf %s "$Q" | "$TANDEM" run --no-think -g -n 24 - >"$OUT" 2>"$T/err" || fail "stdin by -"
cmp "$OUT" "$T/answer" || fail "- gives another answer"
# With and without speculation, whole, as JSON, as a stream of JSON: the same text.
code 0 run --no-think -g -n 24 -k 0 "$Q"
cmp "$OUT" "$T/answer" || fail "another answer without speculation"
code 0 run --no-think -g -n 24 --json --logprobs 2 "$Q"
text_of() { # the "text" of one JSON line, unescaped
	sed 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/; s/\\n/\n/g; s/\\"/"/g; s/\\\\/\\/g' "$1"
}
text_of "$OUT" >"$T/text"
cmp "$T/text" "$T/answer" || fail "--json has another text"
[ "$(wc -l <"$OUT")" = 1 ] || fail "--json is not one line"
shows '"logprobs":\['
shows '"finish_reason":"\(length\|stop\)"'
code 0 run --no-think -g -n 24 --stream-json "$Q"
head -n 1 "$OUT" | grep -q '"event":"accepted"' || fail "first event"
tail -n 1 "$OUT" | grep -q '"event":"finish"' || fail "last event"
grep '"event":"delta"' "$OUT" >"$T/deltas"
text_of "$T/deltas" | head -c 5 >"$T/text"
[ -s "$T/text" ] || fail "no text in the deltas"
code 0 run --no-think -g -n 8 --show-stats "$Q"
grep -q "acceptance length" "$T/err" || fail "no figures"
[ "$(wc -l <"$T/err")" = 1 ] || fail "figures are not one line"
code 0 run --raw -g -n 4 --stop-id 8184 --bias 5=-100 --seed 7 --top-k 3 "1 2 3"

# What the daemon refuses: its sentence, exit code 1; as JSON on stdout too.
code 1 run -n 0 x
one_line "invalid_argument"
code 1 run -t nan x
one_line "invalid_argument"
code 1 run "$(printf '%0900d' 1 | sed 's/./a /g')"
one_line "context_exceeded"
code 1 run --json -n 0 x
shows '^{"error":{"code":"invalid_argument"'
code 1 run --stream-json -n 0 x
shows '"event":"error"'
printf 'a\0b' | "$TANDEM" run >"$OUT" 2>"$T/err" && fail "NUL bytes are no text"
one_line "NUL byte"
printf '\377' | "$TANDEM" run >"$OUT" 2>"$T/err" && fail "not UTF-8"
one_line "not valid UTF-8"
"$TANDEM" run --no-think -g -n 8 "$Q" >/dev/full 2>"$T/err" && fail "a full disk is not success"
one_line "can't write"

# Ctrl-C: the answer so far, exit code 130, the slot free again.
rm -f "$OUT"
"$TANDEM" run --no-think -g --ignore-eos -n 480 "$Q" >"$OUT" 2>"$T/err" &
P=$!
for i in $(seq 1200); do [ -s "$OUT" ] && break; sleep 0.05; done
[ -s "$OUT" ] || fail "no answer to interrupt"
kill -INT $P
wait $P
[ $? = 130 ] || fail "Ctrl-C: exit code $? ($(cat "$T/err"))"
for i in $(seq 1200); do # within a cycle, which takes its time on a busy machine
	code 0 status
	grep -q "0 of 4 in use" "$OUT" && break
	sleep 0.05
done
shows "0 of 4 in use"
shows "2 cancelled" # this one, and the one whose output had nowhere to go

# tokenize, there and back.
code 0 tokenize --ids "ls -l | wc"
"$TANDEM" tokenize -d $(cat "$OUT") >"$T/back" || fail "decode"
[ "$(cat "$T/back")" = "ls -l | wc" ] || fail "there and back: $(cat "$T/back")"
n=$(wc -w <"$OUT")
code 0 tokenize "ls -l | wc"
[ "$(wc -l <"$OUT")" = "$n" ] || fail "not a line per token"
grep -q "^$n tokens$" "$T/err" || fail "count: $(cat "$T/err")"
code 0 tokenize --json "ls -l | wc"
shows "^{\"n\":$n,\"ids\":\["
code 0 tokenize --chat --no-think --ids --system "Be brief." hi
[ "$(wc -w <"$OUT")" -gt 8 ] || fail "no template"
"$TANDEM" tokenize -d "[1, 2,3]" >/dev/null || fail "ids as a JSON array"
code 2 tokenize -d "1 x"
one_line "'x' is not a token id"
code 1 tokenize -d 99999999

# Closed by whoever started it: the connection must not become stdout.
for command in "run --no-think -g -n 8 x" metrics status --help "run --help"; do
	"$TANDEM" $command >&- 2>"$T/err" && fail "tandem $command: a closed stdout is not success"
	one_line "can't write the answer"
done
"$TANDEM" run - <&- >"$OUT" 2>"$T/err" && fail "a closed stdin is not success"
one_line "stdin"
stop
