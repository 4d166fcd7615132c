"""The share in which a client's work counts (`limits.shares`)."""

from __future__ import annotations

from pylogd.base.limits.shares import Share, share_of
from pylogd.credentials.principal import ANONYMOUS, Principal


def share_of_client(principal: Principal, host: str) -> Share:
    """Return the share of the principal, or the share of the address if the client has not authenticated."""
    return Share(share_of(host), False) if principal == ANONYMOUS else Share(str(principal), True)
