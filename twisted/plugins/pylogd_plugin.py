"""Lets `twistd` find pylogd; everything else is in `pylogd.tap`."""

from __future__ import annotations

from twisted.application.service import ServiceMaker

pylogd = ServiceMaker("pylogd", "pylogd.tap", "A log broker that speaks the Kafka wire protocol.", "pylogd")
