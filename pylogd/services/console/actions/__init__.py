"""Actions that change a cluster: each is planned, shown as a command, confirmed, carried out and logged (`steps`)."""

from __future__ import annotations

from pylogd.services.console.actions.brokers import Maintenance
from pylogd.services.console.actions.cluster import (
    AddAcl,
    CancelMoves,
    MoveReplicas,
    RemoveAcl,
    RemoveUser,
    SetQuota,
    SetUser,
    Throttle,
)
from pylogd.services.console.actions.groups import DeleteGroup, ResetOffsets
from pylogd.services.console.actions.messages import Produce, Replay
from pylogd.services.console.actions.steps import Action
from pylogd.services.console.actions.topics import AddPartitions, ChangeSettings, CreateTopic, DeleteTopic
from pylogd.services.console.masking import Masking
from pylogd.services.console.reading import Messages


def all_actions(messages: Messages, masking: Masking) -> list[Action]:
    """Return an instance of every action, for `ActionPages`."""
    return [
        CreateTopic(), AddPartitions(), ChangeSettings(), DeleteTopic(), Produce(), Replay(messages, masking),
        ResetOffsets(), DeleteGroup(), MoveReplicas(), Throttle(), CancelMoves(), SetQuota(), SetUser(), RemoveUser(),
        AddAcl(), RemoveAcl(), Maintenance(),
    ]  # fmt: skip
