# limit: 120
# A model without files serves like one with; the memory plan of the log is what the workers then report; a plan that is too large is refused with what
# to lower.
. "$(dirname "$0")/daemon_lib.sh"
WORKER=$BIN/tandem-target
real() {
	start --engine.drafter_worker="$BIN/tandem-drafter" "$@" # the tokenizer is found
}
ask() {
	timeout 90 "$BIN/tandem" run --quiet --socket "$SOCK" --max-tokens 24 "list the files" >"$1" 2>&1
}

for weights in file bf16; do
	real --synthetic tiny:seed=5 --model.weights=$weights
	ask "$T/$weights" || fail "no answer: $(cat "$T/$weights")"
	ask "$T/again" && cmp -s "$T/$weights" "$T/again" || fail "not the same answer twice"
	[ "$(wc -c <"$T/$weights")" -gt 24 ] || fail "hardly any text: $(cat "$T/$weights")"
	for role in target drafter; do
		planned=$(sed -n "s/.*memory of the cpu: $role: .*weights \([0-9.]*\),.*/\1/p" "$LOG")
		taken=$(sed -n "s/.*the $role worker is ready: .* \([0-9.]*\) MiB of weights.*/\1/p" "$LOG")
		[ -n "$planned" ] && [ "$planned" = "$taken" ] || fail "$role: $planned MiB of weights planned, $taken taken"
	done
	stop
done

real --synthetic qwen3.5-9b:bf16 --engine.slots=64 --engine.context=262144
ask "$T/refused" && fail "a terabyte of cache was accepted"
grep -q 'needs [0-9.]* GiB .* lower engine.slots, engine.context or engine.kv_tokens' "$T/refused" || fail "refused otherwise: $(cat "$T/refused")"
stop

# the line of the README; found from where it was installed, too, and missed with a clear sentence
"$BIN/tandemd" --synthetic qwen3.5-4b --check --engine.device=cpu --tandem.runtime_dir="$T/run" >"$OUT" 2>&1 || fail "--synthetic qwen3.5-4b alone is refused"
mkdir -p "$T/p/bin" "$T/p/lib/tandem" "$T/p/share/tandem/models/tiny"
cp "$BIN/tandemd" "$T/p/bin"
cp "$BIN/tandem-target" "$BIN/tandem-drafter" "$T/p/lib/tandem"
"$T/p/bin/tandemd" --synthetic qwen3.5-4b --check --engine.device=cpu --tandem.runtime_dir="$T/run" >"$OUT" 2>&1 && fail "no tokenizer, and no word"
grep -q 'set model.tokenizer' "$OUT" || fail "the message does not say what to set: $(cat "$OUT")"
cp "$ROOT/models/tiny/tokenizer.json" "$T/p/share/tandem/models/tiny"
"$T/p/bin/tandemd" --synthetic qwen3.5-4b --check --engine.device=cpu --tandem.runtime_dir="$T/run" >"$OUT" 2>&1 || fail "the installed tokenizer is not found: $(cat "$OUT")"

tandemd_run --synthetic qwen3.5-5b >"$OUT" 2>&1 && fail "an unknown size was accepted"
grep -q 'there is no such model' "$OUT" || fail "the message does not say what is wrong"

"$BIN/tandem" doctor --model synthetic:qwen3.5-4b --drafter synthetic:dflash-4b --slots 8 --context 8192 >"$OUT"
grep -q 'memory plan *target: ' "$OUT" && grep -q 'memory plan *in all: ' "$OUT" || fail "doctor plans no memory"
"$BIN/tandem" doctor --context 100 >"$OUT" 2>&1 && fail "doctor took a context of 100"
echo "fine"
