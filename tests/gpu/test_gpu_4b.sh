# limit: 150
# The synthetic 4B pair: fits where it must, serves prompts of 64, 2,048 and 8,192 tokens, takes the memory that was planned, survives a kill; and the
# first figures, each next to its roof: bytes over READ_GBS, operations over TFLOPS of the device (the H200's, measured; others: set them).
. "$(dirname "$0")/gpu_lib.sh"
: "${READ_GBS:=4240}" "${TFLOPS:=790}"
text() { # tokens, about; the word, another one for each prompt, or what was computed for one would be used for the next
	awk -v n="$1" -v word="$2" 'BEGIN { for (i = 0; i < n; i++) printf " %s", word }'
}
line() { # what, us, roof us
	awk -v what="$1" -v us="$2" -v roof="$3" 'BEGIN { printf "figure: %-36s %9.3f ms, roof %8.3f ms, %3.0f %% of it\n", what, us / 1000, roof / 1000, 100 * roof / us }'
}
before=$(used)
serve "$(ways | tail -n 1)" --synthetic qwen3.5-4b --model.tokenizer="$ROOT/models/tiny/tokenizer.json" --engine.slots=1 --engine.context=8448
head=327782400 # 4 bits and a scale for 128; beside it the table in BF16, which is only looked up in
body=$(($(figure_of target weights_bytes) - 1271398400 - head)) draft=$(figure_of drafter weights_bytes)
for prompt in 64:a 2048:b 8192:c; do
	n=${prompt%:*}
	s0=$(figure_of target steps) u0=$(figure_of target step_us) w0=$(figure_of target wait_us) c0=$(figure_of target commit_us) d0=$(figure_of drafter steps) e0=$(figure_of drafter step_us)
	p0=$(figure_of target prefill_tokens) q0=$(figure_of target prefill_us)
	text "$n" "${prompt#*:}" | "$TANDEM" run --json --raw --ignore-eos -n 64 - >"$T/answer" 2>"$T/err" || fail "$n tokens: $(cat "$T/err")"
	tokens=$(($(figure_of target prefill_tokens) - p0)) steps=$(($(figure_of target steps) - s0))
	[ $tokens -ge $((n - 8)) ] && [ $tokens -le $((n + 8)) ] || fail "$tokens tokens instead of $n"
	grep -q '"output_tokens": *64' "$T/answer" || fail "no 64 tokens: $(cat "$T/answer")"
	kv=$((tokens * 32768))
	line "$n: prefill of $tokens" $(($(figure_of target prefill_us) - q0)) "$(awk "BEGIN { f = 2 * $body * 2 * $tokens / $TFLOPS / 1e6; b = ($body + $head) / $READ_GBS / 1e3; print (f > b) ? f : b }")"
	line "$n: verify of 16 rows" "$(awk "BEGIN { print ($(figure_of target step_us) - $u0) / $steps }")" "$(awk "BEGIN { print ($body + $kv + 5e7) / $READ_GBS / 1e3 }")"
	line "$n: head, accept, records" "$(awk "BEGIN { print ($(figure_of target commit_us) - $c0) / $steps }")" "$(awk "BEGIN { print $head / $READ_GBS / 1e3 }")"
	line "$n: draft, appending with it" "$(awk "BEGIN { print ($(figure_of drafter step_us) - $e0) / ($(figure_of drafter steps) - $d0) }")" "$(awk "BEGIN { print ($draft + $head) / $READ_GBS / 1e3 }")"
	decode=$(grep -o '"decode_us": *[0-9]*' "$T/answer" | grep -o '[0-9]*$') cycles=$(grep -o '"cycles": *[0-9]*' "$T/answer" | grep -o '[0-9]*$')
	line "$n: cycle" "$(awk "BEGIN { print $decode / $cycles }")" "$(awk "BEGIN { print ($body + $draft + 2 * $head + $kv + 5e7) / $READ_GBS / 1e3 }")"
done
plan=$(sed -n 's/.*in all: \([0-9.]*\) GiB.*/\1/p' "$LOG") taken=$(($(used) - before))
echo "memory: $taken MiB taken, $plan GiB planned"
awk "BEGIN { d = $taken / ($plan * 1024) - 1; exit !(d < 0.05 && d > -0.05) }" || fail "the plan is more than 5 % off"
spare=$(sed -n 's/.*target: .*checkpoints of prefixes \([0-9.]*\),.*/\1/p' "$LOG") # fewer where memory is short
awk "BEGIN { exit !($plan - $spare / 1024 < 6) }" || fail "one slot of 8,192 tokens is to fit 6 GiB"
text 512 d | "$TANDEM" run --json --raw --ignore-eos -n 200 -g - >"$T/good" 2>"$T/err" || fail "$(cat "$T/err")"
lines=$(wc -l <"$LOG")
(sleep 0.15; kill -9 "$(figure_of target pid)") &
text 512 d | "$TANDEM" run --json --raw --ignore-eos -n 200 -g - >"$T/again" 2>"$T/err" || fail "killed: $(cat "$T/err")"
wait $!
gone=$(awk -v n="$lines" 'NR > n && /worker is gone/ { print NR; exit }' "$LOG") ready=$(awk '/worker is ready/ { n = NR } END { print n }' "$LOG")
[ -n "$gone" ] && [ "$ready" -gt "$gone" ] || fail "the kill came too late"
ms=$(($(moment "$ready") - $(moment "$gone")))
echo "kill -9 of the target at 4B: both ready again after $ms ms"
[ "$("$TANDEM" status --json | grep -c '"imported": true')" -ge 1 ] || fail "weights were read again"
[ $ms -lt 2000 ] || fail "that is more than 2 s"
tr -d ' \n' <"$T/good" | grep -o '"ids":[^]]*' >"$T/a"
tr -d ' \n' <"$T/again" | grep -o '"ids":[^]]*' >"$T/b"
[ -s "$T/a" ] && cmp -s "$T/a" "$T/b" || fail "another answer after the kill"
stop
# eight slots
before=$(used)
serve "$(ways | tail -n 1)" --synthetic qwen3.5-4b --model.tokenizer="$ROOT/models/tiny/tokenizer.json" --engine.slots=8 --engine.context=8192
plan=$(sed -n 's/.*in all: \([0-9.]*\) GiB.*/\1/p' "$LOG") taken=$(($(used) - before))
echo "memory, 8 slots of 8,192: $taken MiB taken, $plan GiB planned"
awk "BEGIN { d = $taken / ($plan * 1024) - 1; exit !(d < 0.05 && d > -0.05 && $plan < 14) }" || fail "more than 5 % off, or more than 14 GiB"
stop
