# limit: 240
# A restart of tandemd keeps the weights in memory: the service manager holds the arenas meanwhile. What it gives back is believed only as far as it can be checked:
# other files, and a store that was damaged in any way, mean loading, never a failure or another answer. The workers and the model are the real (tiny) ones.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"
WORKER=
MODEL=$T/m
cp -r "$ROOT/models/tiny" "$MODEL" || fail "no room for a copy of the model"

stored() { # FDSTORE messages so far
	grep -c '^say FDSTORE=1' "$EVENTS"
}

manage stop_ms=60000 start_ms=60000 -- --engine.threads=1 --engine.context=256 --engine.slots=2
tell start
serves 0 0 "the first start"
tell store
see '^store tandem-target 2'
see '^store tandem-drafter 2'
see '^stored 4'
[ "$(stored)" = 2 ] || fail "stored $(stored) times instead of 2"

# ---- the same model: taken over, after an ordinary end and after a crash; nothing is stored again
tell restart
serves 1 1 "a restart"
tell signal 9
see '^died 9'
serves 1 1 "a crash"
[ "$(stored)" = 2 ] || fail "what was taken over is stored again"

# ---- a worker's death meanwhile changes nothing
raw <<'END'
greet 0
status
until "status"
kill target 9
wait_status "restarts_target=1"
END
tell restart
serves 1 1 "a restart after a worker's death"

# ---- other files of the target: these are loaded, the drafter's memory stays
touch -d '2001-02-03' "$MODEL/target-int4/model.safetensors"
tell restart
see '^say FDSTOREREMOVE=1'
see '^say FDNAME=tandem-target'
see '^say BARRIER=1'
serves 0 1 "changed files"
grep -q 'kept of the target is given up: it holds another model' "$LOG" || fail "the log does not say why"
tell restart
serves 1 1 "the changed files' memory"

# ---- another form is another content
n=$(stored)
for what in note_cut note_bits short pipe double foreign; do
	tell spoil $what tandem-target
	see "^command spoil $what"
	tell restart
	serves 0 1 "$what"
	n=$((n + 1))
	[ "$(stored)" = $n ] || fail "$what: the new memory was not stored"
done
tell spoil foreign tandem-drafter
tell restart
serves 1 0 "the drafter's memory was damaged"
tell spoil none tandem-drafter
tell spoil strange
tell store
see '^store somebody-elses 1'
tell restart
serves 1 0 "the drafter's memory was lost"
tell store
see '^stored 4'

# ---- an end is an end: the memory is given back
tell stop
see '^state inactive'
tell store
see '^stored 0'
tell start
serves 0 0 "a start after a stop"
manage_end
! grep -q 'cannot be had\|is gone' "$LOG" || [ "$(grep -c 'is gone' "$LOG")" = 1 ] || fail "a worker failed: $(grep 'is gone' "$LOG")"

# ---- a worker that fails with what was kept is not given it again
rm -f "$T/answer"
export TANDEM_FAULT=target.load.crash # of each tandemd's first worker
manage stop_ms=60000 start_ms=60000 -- --engine.threads=1 --engine.context=256 --engine.slots=2
tell start
serves 0 0 "a crash while loading"
tell restart
serves 0 1 "a crash while taking over"
grep -q 'did not get ready with the weights that are in memory' "$LOG" || fail "the log does not say that they are given up"
tell store
see '^stored 4'
manage_end
echo "weights outlive the daemon, damage does not"
