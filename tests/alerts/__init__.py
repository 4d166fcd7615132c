"""Which alerts of etc/broker-alerts.yml a real Prometheus fires when real brokers fail: `python -m tests.alerts`."""
