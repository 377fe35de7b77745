# limit: 120
# SIGHUP: settings that may change do, the others are named and stay; a wrong file changes nothing; no running request notices; what overrides the file still does.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"
export FAKE_TARGET=step_us=1000 FAKE_DRAFTER=step_us=200
lines() {
	grep -c "$1" "$LOG"
}
said() { # how often in the log; waits for it
	tries=0
	until [ "$(lines "$1")" -ge "${2:-1}" ]; do
		tries=$((tries + 1))
		[ $tries -lt 200 ] || fail "the log does not say '$1' ${2:-1} times"
		sleep 0.05
	done
}

cat >"$T/ini" <<'END'
[defaults]
max_tokens = 7
[tandem]
log_level = info
max_connections = 3
[engine]
slots = 4
END
manage -- --config "$T/ini" --limits.queue=11
tell start
see '^state active'
raw <<'END'
greet 0
gen tag=1 ids=300,301
until "tag=1 finish reason=2 stop=- prompt=2 output=7"
END

# ---- a stream runs through it
client <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=3000 draft_tokens=0
until "tag=1 delta position=3 "
note started
until "tag=1 finish reason=2 stop=- prompt=2 output=3000"
END
go_on 'note started'
cat >"$T/ini" <<'END'
[defaults]
max_tokens = 9
[tandem]
log_level = debug
max_connections = 2
[engine]
slots = 8
[limits]
queue = 99
END
tell reload
see '^say RELOADING=1'
see '^state reloading'
see '^say MONOTONIC_USEC=[0-9]'
see '^say READY=1'
see '^state active'
said 'reload: defaults.max_tokens has changed'
said 'reload: tandem.max_connections has changed'
said 'reload: tandem.log_level has changed'
said 'reload: engine.slots needs a restart'
[ "$(lines 'reload: limits.queue')" = 0 ] || fail "the file beats the command line"
printf 'greet 0\ngen tag=1 ids=300,301\nuntil "tag=1 finish reason=2 stop=- prompt=2 output=9"\nstatus\nexpect "slots=4"\nconnect 1\nexpect "error code=limit"\neof\n' |
	"$TOOLS/rawclient" "$SOCK" >"$T/out2" 2>"$T/err2" || fail "after the reload: $(cat "$T/err2" "$T/out2")"

# ---- wrong files: named with their line, nothing changes, also nothing before the wrong line
for wrong in 'max_tokens = many' 'max_tokens = 12
nonsense = 1' 'max_tokens = 12
[tandem]
drain_s = -1' 'max_tokens = 12
['; do
	n=$(lines 'reload: nothing changes: ')
	printf '[defaults]\n%s\n' "$wrong" >"$T/ini"
	tell reload
	see '^state reloading'
	see '^state active'
	said "reload: nothing changes: $T/ini:[0-9]" $((n + 1))
done
rm "$T/ini"
tell reload
see '^state active'
said "reload: nothing changes: cannot read $T/ini"
# a pipe, as of a shell's <(...): nobody writes there any more
mkfifo "$T/ini"
tell reload
see '^state active'
said "reload: nothing changes: $T/ini is not a regular file"
rm "$T/ini"
printf 'greet 0\ngen tag=1 ids=300,301\nuntil "tag=1 finish reason=2 stop=- prompt=2 output=9"\n' | "$TOOLS/rawclient" "$SOCK" >"$T/out2" 2>"$T/err2" ||
	fail "a wrong file changed something: $(cat "$T/err2" "$T/out2")"

# ---- again as it was; the stream never noticed; many signals at once are no harm
printf '[defaults]\nmax_tokens = 5\n[tandem]\nlog_level = debug\nmax_connections = 2\n' >"$T/ini"
for i in 1 2 3 4 5 6 7 8; do tell reload; done
said 'reload: defaults.max_tokens has changed' 2
answered
raw <<'END'
greet 0
gen tag=1 ids=300,301
until "tag=1 finish reason=2 stop=- prompt=2 output=5"
END

# ---- tenants come, change and go; a table that cannot be changes nothing
n=$(lines 'reload: .* tenants are in use')
printf '[tenant first]\nuids = %s\nweight = 3\n[tenants]\nunknown = refuse\n' "$(id -u)" >"$T/ini"
tell reload
said 'reload: .* tenants are in use' $((n + 1))
echo 'greet 0' | "$TOOLS/rawclient" "$SOCK" >"$OUT" 2>"$T/err" || fail "$(cat "$T/err")"
grep -q 'tenant=first' "$OUT" || fail "the new tenant is not there: $(cat "$OUT")"
printf '[tenant first]\nuids = %s\n[tenant first]\nweight = none\n' "$(id -u)" >"$T/ini"
n=$(lines 'reload: nothing changes: ')
tell reload
said 'reload: nothing changes: ' $((n + 1))
echo 'greet 0' | "$TOOLS/rawclient" "$SOCK" >"$OUT" 2>"$T/err" && grep -q 'tenant=first' "$OUT" || fail "a wrong weight changed something"
printf '[tenants]\nunknown = refuse\n' >"$T/ini"
n=$(lines 'reload: .* tenants are in use')
tell reload
said 'reload: .* tenants are in use' $((n + 1))
printf 'connect 0\nhello\nexpect "error code=permission_denied"\n' | "$TOOLS/rawclient" "$SOCK" >"$OUT" 2>"$T/err" || fail "nobody is refused: $(cat "$T/err")"
tell stop
see '^state inactive'
manage_end
echo "a reload is nobody's interruption"
