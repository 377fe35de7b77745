# Sourced by tests of what lies in the tree or is made of it: pages, packages, units. They run in its root; T is a folder of their own, PID a daemon that ends
# with them, $T/log what it said.
: "${ROOT:=$(cd "$(dirname "$0")/../.." && pwd)}" "${B:=build}"
cd "$ROOT" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS
T=$(mktemp -d "${TMPDIR:-/tmp}/tandem.XXXXXX") || exit 1
PID=
cleanup() {
	[ -z "$PID" ] || kill -9 "$PID" 2>/dev/null
	wait
	rm -rf "$T"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP PIPE
fail() {
	echo "FAIL: $*"
	[ ! -s "$T/log" ] || { echo "--- the daemon's last lines:"; tail -n 20 "$T/log"; }
	exit 1
}
