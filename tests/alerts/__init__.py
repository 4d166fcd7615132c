"""Which alerts of etc/ a real Prometheus fires when brokers, a mirror or the audit fail: `python -m tests.alerts`."""
