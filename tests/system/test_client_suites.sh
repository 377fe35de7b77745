# limit: 300
# tandem bench SUITE: ops, cycle, latency and load on the tiny model, as text, JSON and a page; what is asked for wrongly.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
MODEL="--model $ROOT/models/tiny/target-int4 --drafter $ROOT/models/tiny/drafter-int4 --device cpu --context 256"
export TMPDIR="$T" OPENBLAS_NUM_THREADS=1

# value NAME: the first one in the JSON.
value() { sed -n "s/^ *\"$1\": \([-0-9.e]*\).*/\1/p" "$OUT" | head -n 1; }
positive() { # names
	for name; do
		awk -v v="$(value "$name")" 'BEGIN { exit !(v > 0) }' || fail "$name is '$(value "$name")'"
	done
}

# ---- a daemon of its own: with the BF16 baseline in the same run, and the page
code 0 bench cycle latency load $MODEL --runs 1 --warmups 0 --requests 1 --max-clients 2 --json --html "$T/page.html"
positive cycle_us draft_us verify_us accept_us prefill_ms whole_ms cycle_ms tokens_per_s first_p50_ms gap_p50_ms fairness
for text in '"suite": "cycle"' '"suite": "latency"' '"suite": "load"' '"bf16": {' '"assumed_against_bf16"' '"acceptance_length": 3.3' '"acceptance_length": 6.0' \
	'"2048 -> 256"' '"8192 -> 256"'; do
	shows "$text"
done
[ "$(grep -c '"clients": [12],' "$OUT")" = 2 ] || fail "not two levels of load"
# The parts of a cycle are all of it, but for what rounding and reading the clocks one after the other leave.
awk -F '[:,]' '/_us"/ { v[$1 ""] += $2 } END {
	for (k in v) if (k ~ /(draft|verify|accept|handover|idle)_us/) sum += v[k]; else if (k ~ /"cycle_us/) all = v[k]
	exit !(sum > 0.9 * all && sum < 1.5 * all) }' "$OUT" || fail "the parts of a cycle don't make a cycle"
[ -z "$(find "$T" -name 'tandem-bench*')" ] || fail "a daemon's folder was left behind"
[ "$(grep -c '<svg' "$T/page.html")" = 3 ] && [ "$(grep -c '</svg>' "$T/page.html")" = 3 ] || fail "not three drawings"
tail -n 1 "$T/page.html" | grep -q '^</body></html>$' || fail "the page is cut"
! grep -q 'http:\|https:\|src=\|<script\|url(' "$T/page.html" || fail "the page needs something else"
for text in "assumed length 5.0" "BF16 weights" "hand-over" "1 client<" "2 clients<"; do
	grep -q "$text" "$T/page.html" || fail "the page has no '$text'"
done

# ---- operations: every kind, each with a positive time, a share and a roof
code 0 bench ops $MODEL --ms 2 --threads 1 --html "$T/ops.html"
for text in "roofs measured here" "roof: copy" "roof: product" "qkvz  *16" "gate and up  *256" "head  *1 " "delta rule  *256" "attention  *16" "swiglu" "rescore  *1 " "rescore  *16" "accept  *16" \
	"propose  *15" "draft attention  *16" "draft fc  *6 "; do
	shows "$text"
done
code 0 bench ops --model synthetic:tiny --device cpu --ms 1 --threads 1 --context 256 --activations int8 --json
grep -q '"activations": "int8"' "$OUT" && grep -q '"[0-9]* x [0-9]* int4 x int8"' "$OUT" || fail "the activations' form is not told"
[ "$(grep -c '"us": 0.0,' "$OUT")" = 0 ] && positive us roof_gb_per_s roof_gflop_per_s roof_share || fail "an operation takes no time"

# ---- random weights answer at the lengths that are assumed, all else as in life; the file has what is printed
{ echo tandem-draft-vocabulary 1; seq 100 1100; } >"$T/first"
code 0 bench cycle latency load --model synthetic:tiny --device cpu --context 256 --runs 1 --warmups 0 --requests 1 --max-clients 1 \
	--save "$T/saved.json" --draft-vocabulary "$T/first" --activations int8
shows "model.activations = int8"
shows "drafts are chosen from the tokens that $T/first lists"
shows "ANSWERS ARE MEANINGLESS"
shows "mean of the ratios at length 5.0"
for text in "whole cycle" "plain decoding, a step" "per token at length 5" "mean of the latency ratios at length 6.0"; do
	shows "  $text.* [0-9.]* [a-zx]"
done
for length in 3.3 5.0 6.0; do
	awk -v want=$length '$2 == "length" && $3 == want "," { n++; got = $9 } END { exit !(n == 1 && got > 0.93 * want && got < 1.03 * want) }' "$OUT" ||
		fail "not answered at a length of $length: $(grep "assumed length" "$OUT")"
done
awk '$1 == 64 && NF > 8 { exit !($8 > 4.7 && $8 < 5.1) }' "$OUT" || fail "cycles are not those of a length of 5"
grep -q '"answered_at_length": true' "$T/saved.json" && grep -q '"sm_share": 100' "$T/saved.json" && grep -q '"draft_vocabulary": ".*first"' "$T/saved.json" || fail "the file lacks something"

# ---- on a running daemon: no baseline, what doesn't fit is told
real
code 0 bench latency load --runs 1 --warmups 0 --requests 1 --max-clients 1
shows "64 -> 128 tokens"
shows "2048 -> 256 left out"
shows "times without"
! grep -q BF16 "$OUT" || fail "a baseline without a model"
"$TANDEM" bench load --max-clients 16 --requests 1000 >"$OUT" 2>"$T/err" &
P=$!
for i in $(seq 1200); do "$TANDEM" status | grep -q "[1-9] of 4 in use" && break; sleep 0.05; done
kill -INT $P
wait $P
[ $? = 130 ] || fail "Ctrl-C: $(cat "$T/err")"
stop

# ---- wrong ones
code 2 bench nonsense
one_line "a suite is ops, cycle, latency or load"
code 2 bench ops
one_line "needs --model"
code 2 bench latency --lossless
one_line "not for suites"
code 2 bench --html "$T/x"
one_line "for suites"
code 2 bench load --sm-share 6
one_line "and --model"
code 2 bench ops $MODEL --activations int4
one_line "takes auto, bf16 or int8"
code 2 bench load --max-clients 0
one_line "from 1 on"
code 1 bench ops --model "$T/none" --device cpu
grep -q "$T/none" "$T/err" || fail "it doesn't name the folder: $(cat "$T/err")"
code 1 bench ops $MODEL --ms 1 --threads 1 --html "$T/none/x.html"
one_line "$T/none/x.html"
code 1 bench ops $MODEL --ms 1 --threads 1 --save "$T/none/x.json"
one_line "$T/none/x.json"
TANDEM_FAULT=target.assume "$BIN/tandemd" --model.target="$ROOT/models/tiny/target-int4" --model.drafter=none --tandem.socket="$T/s2" --tandem.runtime_dir="$T/r2" >"$T/err" 2>&1 &&
	fail "acceptance is assumed for weights that are not random"
grep -q "for --synthetic models" "$T/err" || fail "it said: $(cat "$T/err")"
code 3 bench load --socket "$T/none"
