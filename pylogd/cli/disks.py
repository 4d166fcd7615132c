"""Ask all brokers for their disks, even while one of them is down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylogd.cli.common import patience
from pylogd.cli.silent_brokers import answered
from pylogd.client import Admin
from pylogd.client.core.model import LogDir

#: Seconds for answers of brokers that have many partitions. A broker that was killed refuses at once.
_SECONDS: Final = 10.0


def answered_log_dirs(
    admin: Admin, brokers: Iterable[int], seconds: float = _SECONDS
) -> tuple[list[LogDir], list[int]]:
    """Return the data directories of the brokers that answer within `seconds`, and the ids of those that do not.

    --timeout replaces `seconds`. All brokers are asked at the same time.

    A broker that refuses, because the user may not describe the cluster, is in neither; a note on standard error says
    so.
    """
    return answered(admin.log_dirs_by_broker(brokers, patience(seconds)), "data directories")
