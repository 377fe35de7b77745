# limit: 90
# Tenants: who a client is, what each is allowed, which refusal says so, and what a waiting client is told.
. "$(dirname "$0")/daemon_lib.sh"
ME=$(id -u)
NAME=$(awk -F: -v u="$ME" '$3 == u { print $1; exit }' /etc/passwd)
INI=$T/tandem.ini
config() { # lines for the file, on standard input
	cat >"$INI"
	chmod 600 "$INI"
}

# ---- nobody says anything: each user is a tenant of its own, named after the user
start
raw <<END
connect 0
hello
expect "tenant=${NAME:-uid-$ME} "
END
stop

# ---- by uid, by group; a user of several may choose; one that names nobody of them is refused or shared
config <<END
[tenant first]
uids = $ME
[tenant second]
uids = 4242, $ME
weight = 2.5
[tenant third]
gids = $(id -g)
[tenants]
unknown = refuse
END
start --config "$INI"
raw <<'END'
connect 0
hello
expect "tenant=first "
connect 1
hello tenant=second
expect "tenant=second "
connect 2
hello tenant=third
expect "tenant=third "
connect 3
hello tenant=nobody
expect "tenant=first "
use 1
gen tag=1 ids=300,301 max_tokens=20
until "finish reason=2"
wait_status "gpu_second="
END
stop
config <<END
[tenant by.group]
gids = $(id -g)
END
start --config "$INI"
raw <<'END'
connect 0
hello
expect "tenant=by.group "
END
stop
config <<END
[tenant other]
uids = 4242
[tenants]
unknown = refuse
END
start --config "$INI"
raw <<'END'
connect 0
hello
expect "tag=0 error code=permission_denied text=user"
eof
END
# A daemon that is there and won't have one isn't a missing one.
"$BIN/tandem" run --socket "$SOCK" hi >"$OUT" 2>&1
[ $? = 1 ] && grep -q user "$OUT" || fail "tandem run, refused: $(cat "$OUT")"
stop
start --config "$INI" --tenants.unknown=default
raw <<'END'
connect 0
hello
expect "tenant=default "
END
stop

# ---- what is wrong is refused with file and line
bad() { # what, the file's lines on standard input
	config
	code=0
	tandemd_run --config "$INI" --check >"$T/said" 2>&1 || code=$?
	[ $code = 2 ] || fail "$1: it ended with code $code"
	grep -qF "$INI:$2: " "$T/said" || fail "$1: no file and line $2 in: $(cat "$T/said")"
	grep -qF "$1" "$T/said" || fail "wanted \"$1\" in: $(cat "$T/said")"
	! grep -qF sesame "$T/said" || fail "a key is told: $(cat "$T/said")"
}
bad "there is no user nobody-of-this-name" 2 <<'END'
[tenant a]
uids = 0, nobody-of-this-name
END
bad "there is no group" 2 <<'END'
[tenant a]
gids = nothing-of-this-name
END
bad "user 99999999999: no such number" 2 <<'END'
[tenant a]
uids = 99999999999
END
bad "the list is empty" 2 <<'END'
[tenant a]
uids = ,
END
bad "tenant a.weight = 0: must be a number from 0.001 to 1000" 3 <<'END'
[tenant a]
queue = 3
weight = 0
END
bad "tenant a.memory_share = 101: must be a whole number from 0 to 100" 2 <<'END'
[tenant a]
memory_share = 101
END
bad "tenant a.band = slow: must be interactive or batch" 2 <<'END'
[tenant a]
band = slow
END
bad "key 2 of the list is one of tenant a already" 4 <<'END'
[tenant a]
api_keys = open-sesame-1
[tenant b]
api_keys = open-sesame-2, open-sesame-1
END
bad "key 1 of the list has 6 bytes" 2 <<'END'
[tenant a]
api_keys = sesame
END
bad "a name has 1 to 63 letters" 2 <<'END'
[tenant a/b]
weight = 1
END
bad "unknown setting tenant a.nice" 2 <<'END'
[tenant a]
nice = 3
END
bad "tenants.unknown = everybody: must be own|default|refuse" 2 <<'END'
[tenants]
unknown = everybody
END
bad "unknown setting tenant.weight" 2 <<'END'
[tenant]
weight = 1
END
config <<'END'
[tenant a]
api_keys = open-sesame-1
END
chmod 644 "$INI"
start --config "$INI" "--tenant a.b.weight=3"
grep -q "warn .*$INI holds API keys and everybody on this machine may read it" "$LOG" || fail "readable keys are not told"
! grep -q sesame "$LOG" || fail "a key is in the log"
stop

# ---- limits of a tenant; another one is not touched by them
config <<END
[tenant small]
uids = $ME
queue = 2
max_running = 1
context = 100
[tenant large]
uids = $ME
[tenant slow]
uids = $ME
tokens_per_minute = 600
END
start --config "$INI" --engine.slots=2
raw <<'END'
greet 0 tenant=small
wait_status "state=ready"
gen tag=1 ids=300*100
expect "tag=1 error code=context_exceeded text=the prompt has 100 tokens; tenant small may use 100"
gen tag=2 ids=300*99 ignore_eos=1
until "tag=2 finish reason=2 stop=- prompt=99 output=1 "
gen tag=3 ids=300*40 max_tokens=10 ignore_eos=1
until "tag=3 finish reason=2 stop=- prompt=40 output=10 "
gen tag=4 ids=300*40 ignore_eos=1
until "tag=4 finish reason=2 stop=- prompt=40 output=60 "
END
stop
FAKE_TARGET=step_us=20000 start --config "$INI" --engine.slots=2
raw <<'END'
greet 0 tenant=small
greet 1 tenant=large
use 0
wait_status "state=ready"
gen tag=1 ids=300,301 max_tokens=90 ignore_eos=1 draft_tokens=0
expect "tag=1 accepted request=1 prompt=2 queue=0"
until "tag=1 delta"
gen tag=2 ids=300,301 max_tokens=90 ignore_eos=1 draft_tokens=0
until "tag=2 accepted request=2 prompt=2 queue=1"
gen tag=3 ids=300,301 max_tokens=90 ignore_eos=1 draft_tokens=0
until "tag=3 accepted"
gen tag=4 ids=300,301 max_tokens=90 ignore_eos=1 draft_tokens=0
until "tag=4 error code=tenant_queue_full text=2 requests of tenant small are waiting"
use 1
gen tag=1 ids=300,301 max_tokens=5
expect "tag=1 accepted request=4 prompt=2 queue=0"
until "tag=1 finish reason=2"
status
expect "running_small=1 queued_small=2"
END
grep -q 'tenant_queue_full.* retry_ms=[1-9]' "$OUT" || fail "no retry_after"
stop
start --config "$INI"
raw <<'END'
greet 0 tenant=slow
wait_status "state=ready"
gen tag=1 ids=300*500 max_tokens=200 ignore_eos=1
until "tag=1 finish reason=2"
gen tag=2 ids=300,301 max_tokens=5
expect "tag=2 error code=tenant_rate text=tenant slow has used up its 600 tokens per minute"
greet 1 tenant=large
gen tag=2 ids=300,301 max_tokens=5
until "tag=2 finish reason=2"
END
# 100 tokens too many at 10 tokens a second: about 10 s
ms=$(sed -n 's/.*tenant_rate.* retry_ms=\([0-9]*\)$/\1/p' "$OUT")
[ "${ms:-0}" -gt 2000 ] && [ "$ms" -lt 10200 ] || fail "retry after $ms ms; 10000 less what has passed meanwhile are right"
TANDEM_SOCKET=$SOCK "$BIN/tandem" run --tenant slow -n 2 hello >"$OUT" 2>"$T/said"
[ $? = 4 ] || fail "the command's exit code doesn't say \"not now\": $(cat "$T/said")"
stop

# ---- the queue of all is full of one tenant's requests: another one still gets its even part of it
FAKE_TARGET=step_us=20000 start --config "$INI" --engine.slots=1 --limits.queue=4
{
	echo 'greet 0 tenant=large'
	echo 'wait_status "state=ready"'
	for i in 1 2 3 4 5; do printf 'gen tag=%d ids=300,301 max_tokens=3000 ignore_eos=1 draft_tokens=0\nuntil "tag=%d accepted"\n' $i $i; done
	echo 'gen tag=6 ids=300,301'
	echo 'until "tag=6 error code=queue_full text=4 requests are waiting"'
	echo 'greet 1 tenant=slow'
	for i in 1 2; do printf 'gen tag=%d ids=300,301 max_tokens=3\nuntil "tag=%d accepted"\n' $i $i; done
	echo 'gen tag=3 ids=300,301'
	echo 'until "tag=3 error code=queue_full"'
} >"$T/script"
raw <"$T/script"
stop

# ---- deadlines: one that can't be met is refused at once when it is known how long answers take; one that waits past it ends at it
FAKE_TARGET=step_us=10000 start --config "$INI" --engine.slots=1
{
	echo 'greet 0 tenant=large'
	echo 'wait_status "state=ready"'
	for i in 1 2 3 4 5 6 7 8; do printf 'gen tag=1 ids=300,301 max_tokens=20 ignore_eos=1 draft_tokens=0\nuntil "tag=1 finish reason=2"\n'; done
	for i in 1 2 3 4 5 6; do printf 'gen tag=%d ids=300,301 max_tokens=300 ignore_eos=1 draft_tokens=0\nuntil "tag=%d accepted"\n' $i $i; done
	echo 'gen tag=7 ids=300,301 max_tokens=5 deadline_ms=100'
	echo 'until "tag=7 error code=deadline_unmeetable"'
	echo 'gen tag=8 ids=300,301 max_tokens=5 deadline_ms=4000'
	echo 'until "tag=8 accepted"'
	echo 'until "tag=8 error code=deadline_exceeded"'
} >"$T/script"
raw <"$T/script"
grep -q 'deadline_unmeetable.* retry_ms=[1-9]' "$OUT" || fail "no retry_after"
stop

# ---- places: what is told comes true, changes are told, cancelled ones make room
FAKE_TARGET=step_us=5000 start --config "$INI" --engine.slots=1
raw <<'END'
greet 0 tenant=large
places
wait_status "state=ready"
gen tag=1 ids=300,301 max_tokens=400 ignore_eos=1 draft_tokens=0 stream=0
expect "tag=1 accepted request=1 prompt=2 queue=0"
sleep 100
gen tag=2 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0
expect "tag=2 accepted request=2 prompt=2 queue=1"
gen tag=3 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0
expect "tag=3 accepted request=3 prompt=2 queue=2"
gen tag=4 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0 band=batch
expect "tag=4 accepted request=4 prompt=2 queue=3"
gen tag=5 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0
expect "tag=5 accepted request=5 prompt=2 queue=3"
until "tag=4 queue position=3"
cancel target=2
expect "tag=2 finish reason=3"
END
raw <<'END'
greet 0 tenant=large
places
gen tag=1 ids=300,301 max_tokens=400 ignore_eos=1 draft_tokens=0 stream=0
expect "tag=1 accepted"
sleep 100
gen tag=2 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0
until "tag=2 accepted"
gen tag=3 ids=300,301 max_tokens=4 ignore_eos=1 draft_tokens=0 stream=0
expect "queue=2"
cancel target=2
until "tag=2 finish reason=3"
expect "tag=3 queue position=0"
cancel target=1
until "tag=3 finish reason=2"
END
stop
echo "tenants are told apart, bounded, and told where they are"
