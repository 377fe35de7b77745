# Sourced by tests/gpu/test_*.sh: the system tests' library, with the real workers on a GPU.
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
. "$ROOT/tests/system/daemon_lib.sh"
TANDEM=$BIN/tandem
: "${DEVICE:=cuda}" # cpu: tries the scripts themselves; what is a GPU's then fails
WORKER=$BIN/tandem-target
export TANDEM_SOCKET="$SOCK"
unset XDG_RUNTIME_DIR CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
have_mps() { # with the GPU
	command -v nvidia-cuda-mps-control >/dev/null
}
# The ways to share that this machine has.
ways() {
	echo off
	! have_mps || echo on
}

# serve WAY OPTIONS...: on the GPU, until ready.
serve() {
	way=$1
	shift
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.device="$DEVICE" --engine.mps="$way" "$@"
	"$TANDEM" status --wait 60 >"$OUT" 2>&1 || fail "not ready: $(cat "$OUT")"
}

# A number of the status: of the whole, or of a worker. Workers come in the order target, drafter.
figure() { # key
	"$TANDEM" status --json | tr -d ' \n' | grep -o "\"$1\":[0-9.]*" | head -n 1 | cut -d : -f 2
}
figure_of() { # worker, key
	"$TANDEM" status --json | tr -d ' \n' | sed "s/.*\"role\":\"$1\"//" | grep -o "\"$2\":[0-9.]*" | head -n 1 | cut -d : -f 2
}

# MiB in use on the first GPU.
used() {
	nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1
}

# Milliseconds of the day of the log's line number $1.
moment() {
	sed -n "$1p" "$LOG" | sed 's/^[^T]*T\(..\):\(..\):\(..\)\.\(...\).*/\1 \2 \3 \4/' | awk '{ print (($1 * 60 + $2) * 60 + $3) * 1000 + $4 }'
}
