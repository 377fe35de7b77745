#!/bin/sh
# The Makefile: nothing is built twice, a changed header rebuilds what includes it, what is missing is told and not stumbled over.
# limit: 60
. "$(dirname "$0")/tree_lib.sh"
[ "$B" = build-san ] && SAN=1 || SAN=0
# What make would run, without running it.
would() {
	make -n V=1 SAN=$SAN "$@" 2>&1 | grep -E '(^| )(gcc|cc|nvcc|/[^ ]*nvcc|protoc-c|ar) ' | grep -v 'command -v' >"$T/would"
}

would all tests
[ ! -s "$T/would" ] || fail "make would build again what has been built: $(head -n 3 "$T/would" | cut -c 1-200)"
would -W engine/shm.h all
for f in engine/shm.c daemon/scheduler.c target_worker/step.c; do
	grep -q -- "-c $f " "$T/would" || fail "a change of engine/shm.h does not rebuild $f"
done
! grep -q -- "-c engine/nfc.c" "$T/would" || fail "a change of engine/shm.h rebuilds engine/nfc.c, which does not include it"
would -W proto/worker.proto all
grep -q 'protoc-c.*worker.proto' "$T/would" || fail "a change of worker.proto does not run protoc-c"
grep -q -- "-c engine/control.c" "$T/would" || fail "a change of worker.proto does not rebuild engine/control.c"
! grep -q -- "-c kernels/cpu/" "$T/would" || fail "a change of worker.proto rebuilds kernels"

make -n SAN=$SAN NVCC= all >"$T/said" 2>&1 || fail "make without nvcc: $(tail -n 3 "$T/said")"
grep -q "CUDA module was left out (nvcc was not found)" "$T/said" || fail "make does not tell that the CUDA module is left out"
if PKG_CONFIG_LIBDIR=/nonexistent make SAN=$SAN deps-check >"$T/said" 2>&1; then
	fail "make does not notice that libraries are missing"
fi
grep -q '^missing: .*libuv.*nanomsg' "$T/said" && grep -q 'make setup' "$T/said" || fail "make tells badly what is missing: $(cat "$T/said")"
