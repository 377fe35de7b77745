# limit: 180
# Workers that die while they work, with MPS and without: killed, and by an illegal access of the GPU. The answers stay the same to the token, greedy and
# sampled; the successors read no weights from disk, and serve again within 2 s (after the death was seen, which SIGCHLD tells at once).
. "$(dirname "$0")/gpu_lib.sh"
three() { # script lines in the middle
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 chat="user:how do I find large files?" max_tokens=900 ignore_eos=1
	gen tag=2 chat="user:what does grep do?" max_tokens=700 ignore_eos=1
	gen tag=3 chat="user:count the lines of all C files" max_tokens=900 ignore_eos=1 temperature=0.8 top_p=0.9 seed=7
	$1
	use 1
	wait_status "used=0 queued=0"
	wait_status "state=ready"
	use 0
	total tag=1
	total tag=2
	total tag=3
	END
}
# From the first death in the log behind line $1 to the last worker that is ready.
again() {
	gone=$(awk -v n="$1" 'NR > n && /worker is gone/ { print NR; exit }' "$LOG") ready=$(awk '/worker is ready/ { n = NR } END { print n }' "$LOG")
	[ -n "$gone" ] && [ "$ready" -gt "$gone" ] || fail "$2: nobody died, or nobody came back"
	ms=$(($(moment "$ready") - $(moment "$gone")))
	echo "$2: both ready again after $ms ms"
	[ $ms -lt 2000 ] || fail "$2: that is more than 2 s"
}
same() {
	totals | cmp -s - "$T/good" || fail "$1: another answer: $(totals | diff - "$T/good")"
	"$TANDEM" status --json >"$T/status"
	[ "$(grep -c '"imported": true' "$T/status")" -ge "$2" ] || fail "$1: the successors read weights from disk: $(cat "$T/status")"
}
for way in $(ways); do
	serve "$way" --engine.slots=2 --engine.context=1024
	three 'use 1'
	totals >"$T/good"
	[ "$(grep -c ' gap=0 ' "$T/good")" = 3 ] || fail "no reference"
	three 'use 1'
	same "twice without a fault" 0
	for worker in target drafter; do
		for moment in 40 150; do
			lines=$(wc -l <"$LOG")
			three "use 1
			wait_status \"state=ready\"
			sleep $moment
			kill $worker 9"
			same "MPS $way, $worker killed" 1
			again "$lines" "MPS $way, $worker killed after $moment ms"
		done
	done
	stop
	for worker in target drafter; do
		TANDEM_FAULT=$worker.gpu.fault:20 serve "$way" --engine.slots=2 --engine.context=1024
		lines=$(wc -l <"$LOG")
		three 'use 1'
		grep -q 'illegal memory access' "$LOG" || fail "MPS $way, $worker: the illegal access is not named"
		same "MPS $way, fault of the $worker" 1
		again "$lines" "MPS $way, illegal access of the $worker"
		stop
	done
done
