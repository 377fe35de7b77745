# limit: 300
# Weights outlive tandemd on the GPU: the service manager (tests/tools/notify_harness.c) holds their memory over a restart and a crash, by time slices and under MPS. The
# new workers take it over, the answer is the same, and no memory is lost on the way.
. "$(dirname "$0")/gpu_lib.sh"
. "$ROOT/tests/system/systemd_lib.sh"
WORKER=
ANSWER=64
READY_TRIES=2400
on_gpu() { # imported, what
	serves "$1" "$1" "$2"
	! grep -q 'sharing=".*CPU\|host memory' "$OUT" || fail "this is the CPU"
}
before=$(used)
for mps in off auto; do
	rm -f "$T/answer"
	manage stop_ms=60000 start_ms=120000 -- --synthetic qwen3.5-4b --model.tokenizer="$ROOT/models/tiny/tokenizer.json" --engine.device=cuda \
		--engine.mps=$mps --engine.slots=2 --engine.context=2048
	tell start
	on_gpu 0 "the first start"
	full=$(used)
	for how in restart 'signal 9'; do
		begin=$(date +%s%3N)
		tell "$how"
		see '^state activating'
		on_gpu 1 "$how"
		echo "figure: mps=$mps, $how: answers again after $(($(date +%s%3N) - begin)) ms"
		[ $(($(used) - full)) -lt 300 ] || fail "$how: $full MiB before, $(used) after"
	done
	tell stop
	see '^state inactive'
	manage_end
	tries=0
	until [ $(($(used) - before)) -lt 300 ]; do
		tries=$((tries + 1))
		[ $tries -lt 50 ] || fail "after the stop $(used) MiB are taken, $before before"
		sleep 0.2
	done
done
