# Sourced by test_http*.sh after daemon_lib.sh: what an answer in $OUT says and what it must not.
H=$T/h

has() {
	for word in "$@"; do
		grep -qF -- "$word" "$OUT" || fail "no '$word' in the answer"
	done
}

hasnt() {
	! grep -qF -- "$1" "$OUT" || fail "'$1' in the answer"
}
