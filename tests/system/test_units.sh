#!/bin/sh
# The units as they are installed: systemd finds nothing to complain of, the sandbox holds what was decided (exposure 2.0 at most), and what must not be taken from
# tandemd is not: the GPU's devices, the peers' user ids, /proc/driver.
. "$(dirname "$0")/tree_lib.sh"
mkdir -p "$T/bin" "$T/units" "$T/share/doc/tandem"
ln -s "$ROOT/$B/bin/tandemd" "$T/bin/tandemd"
: >"$T/share/doc/tandem/operations.md"
sed "s|@PREFIX@|$T|" systemd/tandemd.service.in >"$T/units/tandemd.service"
cp systemd/*.socket "$T/units/"
U=$T/units/tandemd.service
! grep -n '@' "$U" | grep -v '^[0-9]*:SystemCallFilter=' || fail "something was not filled in"

has() {
	grep -qx -e "$1" "$U" || fail "the unit lacks $1"
}
lacks() {
	! grep -q -e "^$1" "$U" || fail "the unit must not say $1"
}
for line in Type=notify NotifyAccess=main KillMode=mixed 'WatchdogSec=[1-9].*' 'FileDescriptorStoreMax=[4-9]' User=tandem Group=tandem RuntimeDirectory=tandem \
	RuntimeDirectoryPreserve=yes RestartPreventExitStatus=2 DevicePolicy=closed 'DeviceAllow=/dev/nvidiactl rw' 'DeviceAllow=/dev/nvidia-uvm rw' \
	'DeviceAllow=char-nvidia rw' 'DeviceAllow=char-nvidia-caps rw' CapabilityBoundingSet= NoNewPrivileges=yes ProtectSystem=strict OOMPolicy=continue; do
	has "$line"
done
lacks PrivateDevices=yes # no GPU
lacks PrivateUsers=yes # every client would be nobody
lacks ProcSubset=pid # the driver is asked by /proc/driver
lacks PrivateNetwork=yes # HTTP on loopback
drain=$("$ROOT/$B/bin/tandemd" --help | sed -n 's/^.*drain_s = \([0-9]*\).*/\1/p')
stop=$(sed -n 's/^TimeoutStopSec=\([0-9]*\)s/\1/p' "$U")
[ "$stop" -gt "$drain" ] || fail "TimeoutStopSec=$stop is not above tandem.drain_s = $drain"

command -v systemd-analyze >/dev/null || { echo "the units' text is right; the rest was skipped: systemd-analyze is not installed"; exit 0; }
systemd-analyze --man=no verify "$U" "$T/units/tandemd.socket" "$T/units/tandemd-http.socket" >"$T/said" 2>&1 || fail "systemd-analyze verify: $(cat "$T/said")"
! grep "$T" "$T/said" || fail "systemd-analyze verify complains"
if systemd-analyze --help | grep -q -e '--offline'; then
	systemd-analyze --no-pager --offline=true --threshold=20 security "$U" >"$T/said" 2>&1 || fail "exposure above 2.0: $(tail -n 40 "$T/said")"
	tail -n 1 "$T/said" | sed 's/^[^A-Za-z]*//' # the figure
fi
# One tandemd for each GPU, as docs/scaling.md makes it of this unit: sound, and enabling it enables nothing else.
mkdir -p "$T/many/etc/systemd/system"
awk 'NR == FNR { if (/tandemd@\.service/) on = 1; else if (!NF) on = 0; else if (on) { k = $1; sub(/=.*/, "", k); sub(/^ */, ""); new[k] = new[k] $0 "\n" } next }
	{ k = $0; sub(/=.*/, "", k); if (k in new) { printf "%s", new[k]; new[k] = "" } else print }' docs/scaling.md "$U" >"$T/many/etc/systemd/system/tandemd@.service"
grep -q '^RuntimeDirectory=tandem%i$' "$T/many/etc/systemd/system/tandemd@.service" || fail "docs/scaling.md does not say what to change"
cp "$T/units"/*.socket "$T/many/etc/systemd/system/"
systemctl --root="$T/many" enable tandemd@0 tandemd@1 >"$T/said" 2>&1 || fail "systemctl enable tandemd@0: $(cat "$T/said")"
links=$(find "$T/many" -type l | sed 's|.*/||' | sort | tr '\n' ' ')
[ "$links" = 'tandemd@0.service tandemd@1.service ' ] || fail "enabling tandemd@0 and tandemd@1 enables $links"
cp systemd/tandem.sysusers "$T/tandem.conf"
if systemd-sysusers --help 2>/dev/null | grep -q -e '--dry-run'; then
	mkdir "$T/root"
	systemd-sysusers --dry-run --root="$T/root" --inline "$(grep '^u' systemd/tandem.sysusers)" >"$T/said" 2>&1 || fail "sysusers: $(cat "$T/said")"
fi
echo "the units are what they should be"
