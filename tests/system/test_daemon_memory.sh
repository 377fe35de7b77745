# limit: 60
# Memory that clients can make tandemd take: half-sent messages of all together are bounded, and what long prompts took is given back.
. "$(dirname "$0")/daemon_lib.sh"
rss() { awk '/VmRSS/ { print $2 }' "/proc/$PID/status"; }

# ---- four half messages are above the bound: the largest goes and is told why; the others may go on
start --limits.max_frame=1M --limits.input_memory=3M
raw <<'END'
greet 0
greet 1
greet 2
greet 3
greet 4
use 1
half 600000
use 2
half 1000000
use 3
half 900000
use 0
status
expect "connections=5"
use 2
silence 200
use 4
half 800000
use 2
expect "tag=0 error code=limit text=the messages that all clients have half sent take more than limits.input_memory = 3145728 bytes"
eof
use 0
wait_status "connections=4"
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2"
use 3
bytes 00
expect "error code=protocol"
eof
use 1
silence 100
END
stop

# ---- 12 prompts of 6 MB each, too long for the context, at once on several connections; then RSS is near where it was
start
raw <<'END'
greet 0
wait_status "state=ready"
tokenize tag=1 text="a few words"
expect "tokens"
END
before=$(rss)
text=$(head -c 900000 /dev/zero | tr '\0' 'x' | sed 's/xxxxxxx/word of/g')
for i in 0 1 2 3 4 5; do
	printf 'greet %s\ntokenize tag=1 text="%s"\ngen tag=2 text="%s"\n' $i "$text" "$text"
done >"$T/script"
for i in 0 1 2 3 4 5; do
	printf 'use %s\ntimeout 60000\nuntil "tag="\nuntil "tag="\n' $i
done >>"$T/script"
raw <"$T/script"
: >"$OUT"
high=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
tries=0
until [ "$(rss)" -lt $((before + 3072)) ]; do
	tries=$((tries + 1))
	[ $tries -lt 400 ] || [ "$B" = build-san ] || fail "RSS was $before KiB, at most $high, and stays at $(rss)"
	[ $tries -lt 400 ] || break
	sleep 0.05
done
echo "RSS: $before KiB before, at most $high, $(rss) afterwards"
[ $((high - before)) -gt 8192 ] || fail "the prompts took no memory: the test has nothing to test"
stop
