# limit: 90
# What can be wrong before the first client: each is one line on stderr and an exit code that is not 0.
. "$(dirname "$0")/daemon_lib.sh"

refused() { # code, text, options...
	code=$1
	text=$2
	shift 2
	tandemd_run "$@" >"$T/refused.out" 2>"$T/refused" </dev/null &
	job=$!
	{ sleep 60; kill -9 $job; } 2>/dev/null & # one that serves instead must not hang the test
	wait $job
	got=$?
	kill $! 2>/dev/null
	[ $got = "$code" ] || fail "exit code $got instead of $code for: $* ($(cat "$T/refused"))"
	[ "$(wc -l <"$T/refused")" = 1 ] || fail "not one line for $*: $(cat "$T/refused")"
	grep -q -- "$text" "$T/refused" || fail "'$text' is not said for $*: $(cat "$T/refused")"
	grep -q '^tandemd: ' "$T/refused" || fail "no name before: $(cat "$T/refused")"
}

# ---- settings
refused 2 'unknown option --nonsense' --nonsense
refused 2 'unknown option hello' hello
refused 2 'unknown setting engine.slot;' --engine.slot=4
refused 2 'engine.slots = 0: must be a whole number from 1 to 64' --engine.slots=0
refused 2 'engine.slots = 65' --engine.slots=65
refused 2 'engine.slots = four' --engine.slots four
refused 2 'engine.slots = 1.5' --engine.slots=1.5
refused 2 'engine.context = 100: must be a multiple of 64' --engine.context=100
refused 2 "engine.context = 8192: the model's positions end at 4096" --engine.context=8192
refused 2 'engine.chunk = 100' --engine.chunk=100
refused 2 'engine.kv_tokens = 64: must hold at least one context' --engine.kv_tokens=64
refused 2 'engine.draft_tokens = 16' --engine.draft_tokens=16
refused 2 'engine.device = tpu: must be auto|cpu|cuda' --engine.device=tpu
refused 2 'defaults.temperature = nan' --defaults.temperature=nan
refused 2 'defaults.top_p = 2' --defaults.top_p=2
refused 2 'tandem.socket_mode = 999' --tandem.socket_mode=999
refused 2 'tandem.log_level = loud' --tandem.log_level=loud
refused 2 'limits.max_frame = 8X' --limits.max_frame=8X
refused 2 'needs a value' --engine.slots
refused 2 'option --config needs a value' --config
refused 2 'option --config needs a value' --config=
refused 2 'option --synthetic needs a value' --synthetic
refused 2 'cannot read /nowhere/x.ini: No such file' --config /nowhere/x.ini
printf '[engine]\nslots = 2\n\n[engine]\nslotz = 3\n' >"$T/c.ini"
refused 2 "$T/c.ini:5: unknown setting engine.slotz" --config "$T/c.ini"
printf '[engine]\nslots = 2\nnonsense\n' >"$T/c.ini"
refused 2 "$T/c.ini:3: neither" --config="$T/c.ini"
printf '[model]\n; %0300d\nname = x\n' 0 >"$T/c.ini"
refused 2 "$T/c.ini:2: the line is longer than" --config="$T/c.ini"

# ---- model
refused 2 'model.target is not set' --model.target=
refused 2 'model.drafter is not set' --model.drafter=
refused 2 'model.target = /nowhere: No such file' --model.target=/nowhere
refused 2 'model.target' --model.target="$T"
refused 2 'model.drafter = /nowhere' --model.drafter=/nowhere
refused 2 'model.tokenizer = /nowhere' --model.tokenizer=/nowhere
refused 2 'engine.target_worker: cannot run /nowhere' --engine.target_worker=/nowhere
refused 2 'engine.drafter_worker: cannot run /nowhere' --engine.drafter_worker=/nowhere
refused 2 'engine.target_worker: cannot run /usr: it is not a program' --engine.target_worker=/usr
mkdir -p "$T/m/target" "$T/m/drafter"
sed 's/"qwen3_5_text"/"llama"/' "$ROOT/models/tiny/target-int4/config.json" >"$T/m/target/config.json"
refused 2 'llama' --model.target="$T/m/target"
cp "$ROOT/models/tiny/target-int4/config.json" "$T/m/target/config.json"
refused 2 'there is no tokenizer.json in .* nor beside it: set model.tokenizer' --model.target="$T/m/target"
for change in 's/"hidden_size": 512/"hidden_size": 1024/' 's/"vocab_size": 8192/"vocab_size": 8200/' 's/^  5$/  9/;s/^   5$/   9/'; do
	sed "$change" "$ROOT/models/tiny/drafter-int4/config.json" >"$T/m/drafter/config.json"
	! cmp -s "$T/m/drafter/config.json" "$ROOT/models/tiny/drafter-int4/config.json" || fail "'$change' changes nothing"
	refused 2 'model.drafter' --model.drafter="$T/m/drafter"
done
# ---- weights that cannot load: told at once, by --check and by a start alike
parts() { # a copy of the tiny model whose weights are links
	rm -rf "$T/m"
	mkdir -p "$T/m/target" "$T/m/drafter"
	ln -s "$ROOT"/models/tiny/target-int4/* "$T/m/target/"
	ln -s "$ROOT"/models/tiny/drafter-int4/* "$T/m/drafter/"
	ln -s "$ROOT/models/tiny/tokenizer.json" "$T/m/tokenizer.json" 2>/dev/null
	rm "$T/m/$1/$2"
}
checked() {
	refused 2 "$1" --check --model.target="$T/m/target" --model.drafter="$T/m/drafter"
}
for worker in target drafter; do
	tiny=$ROOT/models/tiny/$worker-int4
	parts $worker model.safetensors
	checked 'holds neither model.safetensors nor model.safetensors.index.json'
	head -c 20000 "$tiny/model.safetensors" >"$T/m/$worker/model.safetensors"
	checked 'model.safetensors: .*truncated'
	refused 2 'truncated' --model.target="$T/m/target" --model.drafter="$T/m/drafter"
	rm "$T/m/$worker/model.safetensors"
	mkdir "$T/m/$worker/model.safetensors"
	checked 'model.safetensors: is not a regular file'
	rmdir "$T/m/$worker/model.safetensors"
	ln -s /dev/zero "$T/m/$worker/model.safetensors"
	checked 'model.safetensors: is not a regular file'
	parts $worker config.json
	sed 's/"intermediate_size": \([0-9]*\)/"intermediate_size": 2\1/' "$tiny/config.json" >"$T/m/$worker/config.json"
	checked 'mlp'
done
parts drafter config.json # one tap more than the fc tensor has columns for
awk '/"target_layer_ids"/ { print; print "   0,"; next } { print }' "$ROOT/models/tiny/drafter-int4/config.json" >"$T/m/drafter/config.json"
checked 'fc'
tandemd_run --check >"$T/refused" 2>&1 || fail "--check of a good configuration: $(cat "$T/refused")"
tandemd_run --check --model.drafter=none --engine.drafter_worker=/nowhere >"$T/refused" 2>&1 || fail "without a drafter: $(cat "$T/refused")"
"$BIN/tandemd" --version | grep -q '^tandemd [0-9]' || fail "--version"
"$BIN/tandemd" --help | grep -q '^  slots = 4 ' || fail "--help does not tell the settings"

# ---- paths
long=/tmp/$(printf '%0110d' 0)
refused 2 "tandem.socket: the path has 115 bytes, a Unix socket's may have 107 at most" --tandem.socket="$long"
refused 2 'tandem.runtime_dir = .* too long' --tandem.runtime_dir="$long"
refused 2 'tandem.socket = /nowhere/s: cannot make it: No such file' --tandem.socket=/nowhere/s
refused 2 'cannot make' --tandem.socket=/proc/s
refused 2 'cannot make the folder /proc/x' --tandem.runtime_dir=/proc/x
refused 2 'something that is not a socket is there' --tandem.socket="$T/c.ini"
[ -s "$T/c.ini" ] || fail "a file that is no socket was removed"
refused 2 'cannot open the log file /nowhere/log' --tandem.log_file=/nowhere/log
# The lock is written to: nothing else may be in its place, least of all somebody's file by a link.
mkdir "$T/odd"
echo precious >"$T/precious"
for make in 'ln -s' ln 'ln -sf /dev/null' mkfifo mkdir; do
	case $make in *null) $make "$T/odd/lock" ;; ln*) $make "$T/precious" "$T/odd/lock" ;; *) $make "$T/odd/lock" ;; esac
	refused 2 "$T/odd/lock is not a file of its own" --tandem.runtime_dir="$T/odd"
	rm -rf "$T/odd/lock"
done
[ "$(cat "$T/precious")" = precious ] || fail "a file that the lock was linked to was written to: $(cat "$T/precious")"
if [ "$(id -u)" = 0 ]; then # what root started once in the service's folder is no obstacle for the service
	chown 65534:65534 "$T/odd"
	refused 2 'cannot make' --tandem.runtime_dir="$T/odd" --tandem.socket=/nowhere/s
	[ "$(stat -c %u "$T/odd/lock")" = 65534 ] || fail "the lock in a folder of user 65534 belongs to $(stat -c %u "$T/odd/lock")"
fi
[ -z "$(find "$T" -name '*.ipc')" ] && [ ! -e "$SOCK" ] || fail "a refused start left sockets behind"

# ---- only the runtime folder is chosen: the socket's folder is the default one, and is made
XDG_RUNTIME_DIR=$T/xdg "$BIN/tandemd" --tandem.runtime_dir="$T/run3" --model.target="$ROOT/models/tiny/target-int4" --model.drafter=none \
	--engine.target_worker="$WORKER" --engine.device=cpu >"$T/refused" 2>&1 &
PID=$!
for i in $(seq 600); do grep -q ' socket ' "$T/refused" && break; sleep 0.05; done
kill "$PID"
wait "$PID"
PID=
grep -q "socket $T/xdg/tandem/tandem.sock\$" "$T/refused" || fail "the default socket's folder is not made: $(cat "$T/refused")"

# ---- a folder that others may change is told of, one of our own is not
mkdir -p "$T/run"
for mode in 775 757 755 1777; do
	chmod $mode "$T/run"
	start
	case $mode in 7[57]7 | 775) told=1 ;; *) told=0 ;; esac
	[ "$(grep -c "tandem.runtime_dir = $T/run: others than tandemd may change it (owner $(id -u), mode $mode)" "$LOG")" = $told ] || fail "of mode $mode it is not told right"
	stop
done

# ---- a second daemon: on the same folder, on the same socket; the first does not notice
start
[ "$(stat -c %a "$SOCK")" = 660 ] || fail "the socket's mode is $(stat -c %a "$SOCK")"
refused 1 "the runtime folder $T/run belongs to another tandemd (process $PID)" --tandem.socket="$T/s2"
refused 1 "tandem.socket = $SOCK: another program listens there" --tandem.runtime_dir="$T/run2"
raw <<'END'
greet 0
gen tag=1 ids=300 max_tokens=2
until "finish"
END
# ---- killed: the socket file is stale, its successor replaces it, no worker is left
workers=$(pgrep -P "$PID" | tr '\n' ' ')
[ -n "$workers" ] || fail "there are no workers"
kill -9 "$PID"
while [ ! -s "$T/code" ]; do sleep 0.05; done
rm -f "$T/code"
[ -S "$SOCK" ] || fail "a kill -9 leaves the socket file: the test has nothing to test"
sleep 0.3
for w in $workers; do
	case $(cut -d' ' -f3 "/proc/$w/stat" 2>/dev/null) in '' | Z) ;; *) fail "worker $w outlived its daemon" ;; esac
done
start --tandem.socket_mode=0600
sleep 0.1
[ "$(stat -c %a "$SOCK")" = 600 ] || fail "the socket's mode is $(stat -c %a "$SOCK")"
grep -q 'removed the stale socket' "$LOG" || fail "the stale socket was not replaced"
raw <<'END'
greet 0
gen tag=1 ids=300 max_tokens=2
until "finish"
END
stop
# ---- the socket's file is removed, alone and with its folder: it is there again, connections and answers go on
SOCK=$T/run/s
start --http.socket="$T/h"
back() { # until somebody listens there again
	for i in $(seq 600); do [ -S "$1" ] && return; sleep 0.05; done
	fail "$1 is not there again"
}
rm "$SOCK" "$T/h"
back "$SOCK"
back "$T/h"
[ "$(stat -c %a "$SOCK")" = 660 ] || fail "the socket's mode is $(stat -c %a "$SOCK") the second time"
for i in 1 2; do
	cat >"$T/script" <<-END
	greet 0
	gen tag=1 ids=300,301 max_tokens=3000 ignore_eos=1 draft_tokens=0
	until "tag=1 delta"
	note started
	until "tag=1 finish reason=2"
	END
	: >"$OUT"
	"$TOOLS/rawclient" "$SOCK" <"$T/script" >"$OUT" 2>"$T/err" &
	CLIENT=$!
	for k in $(seq 600); do grep -q 'note started' "$OUT" && break; sleep 0.05; done
	rm -rf "$T/run"
	back "$SOCK"
	echo 'greet 0' | "$TOOLS/rawclient" "$SOCK" >/dev/null || fail "the new socket does not serve"
	wait $CLIENT || fail "an answer ended with the socket's file: $(cat "$T/err")"
done
[ "$(cat "$T/run/lock")" = "$PID" ] || fail "the runtime folder is not locked again"
refused 1 "another program listens there" --tandem.socket="$SOCK" --tandem.runtime_dir="$T/run2"
# something else in its place stays
rm "$SOCK"
: >"$SOCK"
sleep 2.5
[ -f "$SOCK" ] || fail "a file of somebody else was replaced"
rm "$SOCK"
back "$SOCK"
stop
echo "every refusal is one line"
