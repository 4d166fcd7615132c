"""Give a user of the cluster a password."""

from __future__ import annotations

import shlex
from typing import Final

from pylogd.credentials.scram import SCRAM_MECHANISMS
from pylogd.services.console.actions.cluster import OnCluster
from pylogd.services.console.actions.steps import Field, Plan, command
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.roles import Role

_BOTH: Final = "both"
_FEWEST: Final = 8  # the fewest characters of a password


class SetUser(OnCluster):
    """Add a user, or change a password. No page, command or log has the password."""

    path, name, heading, after = "/set-user", "set user", "Add a user or change a password", "/users"
    secret = True
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("user", "User", required=True),
            Field("password", "Password", "password", required=True, hint=f"at least {_FEWEST} characters"),
            Field("mechanism", "Mechanism", "choice", choices=[_BOTH, *SCRAM_MECHANISMS]),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the plan, without the password. Raises Refused."""
        user, password = asked.form.get("user", "").strip(), asked.form.get("password", "")
        chosen = asked.form.get("mechanism", _BOTH)
        if not user or len(password) < _FEWEST:
            raise Refused(422, f"Write a user, and a password of at least {_FEWEST} characters.")
        if chosen != _BOTH and chosen not in SCRAM_MECHANISMS:
            raise Refused(422, "Choose a mechanism.")
        mechanisms = list(SCRAM_MECHANISMS) if chosen == _BOTH else [chosen]

        async def run() -> str:
            await cluster.admin.set_password(user, password, mechanisms)
            return f"The user {user} has the password for {' and '.join(mechanisms)}."

        words: list[object] = ["users", "add", user]
        words += [] if chosen == _BOTH else ["--mechanism", chosen]
        line = f"read -rs PASSWORD; printf '%s\\n' \"$PASSWORD\" | {command(cluster, *words)}"
        return Plan(line, run, logged=shlex.join(["user", user, *mechanisms]))
