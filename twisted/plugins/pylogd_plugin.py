"""Lets `twistd` find pylogd; everything else is in `pylogd.broker.tap`."""

from __future__ import annotations

from twisted.application.service import ServiceMaker

pylogd = ServiceMaker("pylogd", "pylogd.broker.tap", "A log broker that speaks the Kafka wire protocol.", "pylogd")
