# limit: 120
# The daemon with both workers on the GPU, with MPS and without: the CPU's answers, alone and all at once, from packed and from expanded weights; the weights
# are on the device once, and the memory taken is what the plan says.
. "$(dirname "$0")/gpu_lib.sh"
# Prompts of our own whose greedy answers have no close calls, so that rounding can't change a token; activations as they are, as on the CPU.
ask() {
	raw <<-'END'
	greet 0
	timeout 30000
	gen tag=1 chat="user:How do I extract a tar archive?" max_tokens=24
	until "tag=1 finish"
	gen tag=2 chat="user:Show me examples of rsync." max_tokens=48
	until "tag=2 finish"
	gen tag=3 chat="user:How do I extract a tar archive?" max_tokens=24
	gen tag=4 chat="user:Show me examples of rsync." max_tokens=48
	gen tag=5 chat="user:Show me examples of rsync." max_tokens=48 temperature=0.7 seed=5
	wait_status "used=0 queued=0"
	total tag=1
	total tag=2
	total tag=3
	total tag=4
	END
	totals >"$1"
	[ "$(grep -c ' gap=0 ' "$1")" = 4 ] && [ "$(head -n 2 "$1" | wc -c)" -gt 200 ] || fail "hardly an answer: $(cat "$1")"
	head -n 2 "$1" >"$1.alone"
	tail -n 2 "$1" | cmp -s - "$1.alone" || fail "another answer in company: $(cat "$1")"
}
start --engine.drafter_worker="$BIN/tandem-drafter" --engine.context=1024
"$TANDEM" status --wait 60 >/dev/null || fail "the CPU does not serve"
ask "$T/cpu"
stop
for way in $(ways); do
	for weights in file bf16; do
		before=$(used)
		serve "$way" --engine.context=1024 --model.weights=$weights --model.activations=bf16
		ask "$T/gpu"
		cmp -s "$T/cpu" "$T/gpu" || fail "MPS $way, weights $weights: not the CPU's answer: $(diff "$T/cpu" "$T/gpu")"
		plan=$(sed -n 's/.*in all: \([0-9.]*\) GiB.*/\1/p' "$LOG") taken=$(($(used) - before))
		echo "MPS $way, weights $weights: the CPU's tokens; $taken MiB taken, $plan GiB planned (MPS' own server is not in the plan)"
		[ "$way" = on ] || awk "BEGIN { d = $taken / ($plan * 1024) - 1; exit !(d < 0.05 && d > -0.05) }" || fail "the plan is more than 5 % off"
		stop
	done
done
