#!/bin/bash
# Runs inside a booted Debian, as a unit of its systemd: install pylogd's package, use its services, remove it. Writes a
# line for each thing that was shown; the first failure ends it.
set -eu -o pipefail
trap 'echo "FAILED at line $LINENO"; journalctl --no-pager -n 30 -u "pylogd*"; exit 1' ERR
shown() { echo "- $*"; }
fails() { if "$@" >/dev/null 2>&1; then echo "$* did not fail"; false; fi; }
until_true() { for _ in $(seq 300); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.2; done; "$@"; }

dpkg -i /pylogd.deb >/dev/null
shown "\`dpkg -i\` installs $(dpkg-query -W -f '${Package} ${Version}' pylogd), $(dpkg-query -W -f '${Installed-Size}' pylogd) KiB"
fails systemctl is-enabled --quiet pylogd
systemctl enable --now pylogd 2>/dev/null
systemctl is-active --quiet pylogd
pid=$(systemctl show -p MainPID --value pylogd)
user=$(stat -c %u "/proc/$pid")
[ "$user" != 0 ]
shown "\`systemctl enable --now pylogd\` returns once it serves (Type=notify); it runs as user $user, a dynamic one"
level=$(systemd-analyze security pylogd.service | tail -n 1 | grep -o '[0-9.]* OK')
shown "\`systemd-analyze security\`: $level"
pylogd topics create demo
printf 'one\ntwo\n' | pylogd produce demo
[ "$(pylogd consume demo --until-end | sort | tr '\n' ' ')" = "one two " ]
pylogd cluster health >/dev/null
shown "two records produced and consumed with \`pylogd\`; \`pylogd cluster health\` ends with 0"

sed -i '1i "log.segment.bytes" = 16777216' /etc/pylogd/pylogd.toml
systemctl reload pylogd
until_true bash -c 'journalctl -u pylogd | grep -q "SIGHUP: changed log.segment.bytes"'
shown "\`systemctl reload pylogd\` applies a changed setting"

systemctl enable --now pylogd-registry 2>/dev/null
python3 - <<'END'
import json, urllib.request
body = json.dumps({"schema": '"string"'}).encode()
asked = urllib.request.Request("http://127.0.0.1:8081/subjects/demo-value/versions", body, {"Content-Type": "application/json"})
assert json.load(urllib.request.urlopen(asked, timeout=60))["id"] == 1
END
shown "\`pylogd-registry\` runs and registers a schema"

kill -9 "$pid"
# For a moment after the kill it is still active, with no process: ask for the new process first.
until_true bash -c "systemctl show -p MainPID --value pylogd | grep -qvx -e 0 -e $pid && systemctl is-active --quiet pylogd"
[ "$(pylogd consume demo --until-end | sort | tr '\n' ' ')" = "one two " ]
shown "killed, it is started again by systemd and has its records"

echo 'BROKER_OPTIONS=--set no.such.setting=1' >/etc/pylogd/broker.env
fails systemctl restart pylogd
[ "$(systemctl show -p NRestarts --value pylogd)" -le 1 ]
[ "$(systemctl show -p ExecMainStatus --value pylogd)" = 2 ]
rm /etc/pylogd/broker.env
systemctl reset-failed pylogd
systemctl start pylogd
shown "a wrong setting ends it with exit status 2, and systemd does not try again"

systemctl stop pylogd
journalctl -u pylogd | grep -q "Stopped"
[ -e /var/lib/private/pylogd/.kafka_cleanshutdown ]
shown "\`systemctl stop\` ends it cleanly"
systemctl start pylogd

dpkg -i /pylogd.deb >/dev/null
systemctl is-active --quiet pylogd
shown "a second installation restarts the running services"
dpkg -r pylogd >/dev/null
fails systemctl is-active --quiet pylogd
[ -e /etc/pylogd/pylogd.toml ]
[ ! -e /opt/pylogd/bin/pylogd ]
dpkg -P pylogd >/dev/null
[ ! -e /etc/pylogd/pylogd.toml ]
[ -e /var/lib/private/pylogd/demo-0 ]
shown "\`dpkg -r\` stops the services; \`dpkg -P\` removes the settings too, and the data stays"
echo PASSED
