"""Settings of single groups, in the nodes `/config/groups/<group>`.

Must not know: groups, requests.
"""

from __future__ import annotations

from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.named_configs import NamedConfigs
from pylogd.config import GROUP_SETTINGS, Settings
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.paths import GROUP_CONFIGS


class GroupConfigs(NamedConfigs):
    """The settings of all groups, kept up to date. A group need not exist to have settings."""

    def __init__(self, store: IMetadataStore, settings: Settings, feed: ChangeFeed) -> None:
        super().__init__(store, feed, GROUP_CONFIGS, GROUP_SETTINGS, settings.check_group)
        self._settings = settings

    def integer(self, group_id: str, name: str) -> int:
        """Return the value of a setting for a group: its own, or the broker's."""
        return self._settings.group_value(self.get(group_id), name)
