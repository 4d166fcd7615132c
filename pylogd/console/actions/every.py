"""All actions."""

from __future__ import annotations

from pylogd.console.actions.brokers import Maintenance
from pylogd.console.actions.cluster import AddAcl, CancelMoves, MoveReplicas, RemoveAcl, RemoveUser, SetQuota, Throttle
from pylogd.console.actions.groups import DeleteGroup, ResetOffsets
from pylogd.console.actions.messages import Produce, Replay
from pylogd.console.actions.steps import Action
from pylogd.console.actions.topics import AddPartitions, ChangeSettings, CreateTopic, DeleteTopic
from pylogd.console.actions.users import SetUser
from pylogd.console.masking import Masking
from pylogd.console.reading import Messages


def actions(messages: Messages, masking: Masking) -> list[Action]:
    """Return an instance of every action, for `ActionPages`."""
    return [
        CreateTopic(), AddPartitions(), ChangeSettings(), DeleteTopic(), Produce(), Replay(messages, masking),
        ResetOffsets(), DeleteGroup(), MoveReplicas(), Throttle(), CancelMoves(), SetQuota(), SetUser(), RemoveUser(),
        AddAcl(), RemoveAcl(), Maintenance(),
    ]  # fmt: skip
