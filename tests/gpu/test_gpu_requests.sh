# limit: 120
# A thousand requests, two at a time, of changing lengths: the device's memory is the same afterwards.
. "$(dirname "$0")/gpu_lib.sh"
many() { # count
	awk -v n="$1" 'BEGIN {
		print "greet 0\ntimeout 30000"
		for (i = 1; i <= n; i++) {
			printf "gen tag=%d ids=%d*%d max_tokens=%d ignore_eos=1 temperature=%.1f seed=%d\n", i % 200 + 1, 300 + i % 700, 1 + i * 37 % 300, 1 + i % 9, i % 3 ? 0 : 0.9, i
			if (i % 2 == 0)
				printf "until \"tag=%d finish\"\n", i % 200 + 1
			if (i % 40 == 0)
				print "wait_status \"used=0 queued=0\""
		}
	}' | raw
}
serve "$(ways | tail -n 1)" --engine.slots=2 --engine.context=1024
many 40
before=$(used)
many "${REQUESTS:=1000}"
after=$(used)
[ "$(figure failed)" = 0 ] && [ "$(figure finished)" = $((REQUESTS + 40)) ] || fail "$(figure finished) finished, $(figure failed) failed"
[ "$before" = "$after" ] || fail "$before MiB before, $after MiB after"
echo "$REQUESTS requests: $before MiB before and after"
stop
