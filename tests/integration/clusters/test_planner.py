"""Plans on real brokers with cordons, maintenance and decommissions: no plan is refused, and a refused one changes
nothing. Each command is run right after the one that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pylogd.client import Admin, NewTopic
from pylogd.client.core.admin.move_operations import RATES, THROTTLED
from tests.clusters import BrokerCluster
from tests.commands import Outcome, run_command
from tests.integration.clusters.test_reassignment import fill

StartCluster = Callable[..., BrokerCluster]


class Commands:
    """Commands on a cluster, and what they leave behind."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster

    def run(self, *words: str, ok: bool = True, text: str = "") -> Outcome:
        """Run a command of `pylogd`."""
        done = run_command(*words, "-b", self.cluster.bootstrap, stdin=text)
        assert (done.returncode == 0) is ok, (done.stdout, done.stderr)
        return done

    def plan(self, *words: str) -> tuple[dict[int, list[int]], str, str]:
        """Return the replicas of a plan by partition, its document, and what was noted."""
        done = self.run("reassign", "plan", *words)
        planned = {one["partition"]: one["replicas"] for one in json.loads(done.stdout)["partitions"]}
        return planned, done.stdout, done.stderr

    def settings(self, topic: str) -> dict[str, str | None]:
        """Return the throttles, cordons and labels that were set at run time."""

        def ask(admin: Admin) -> dict[str, str | None]:
            found = {}
            for kind, name in [("broker", str(node)) for node in self.cluster.ports] + [("topic", topic)]:
                entries = admin.describe_configs(kind, name)  # type: ignore[arg-type]
                for one in entries:
                    if one.source in ("topic", "broker, at run time"):
                        found[f"{kind} {name} {one.name}"] = one.value
            return found

        return self.cluster.ask(ask)


def test_refused_plans_change_nothing(start_cluster: StartCluster) -> None:
    cluster = start_cluster(4, {"offsets.topic.num.partitions": "2"}, labels=["x", "x", "x", ""])
    commands = Commands(cluster)
    spread = NewTopic("t", assignments={index: [1, 2] for index in range(4)})
    whole = NewTopic("whole", assignments={0: [1, 2, 3, 4]})
    cluster.ask(lambda admin: admin.create_topics([spread, whole]))
    cluster.wait_for_isr("t", 2)
    cluster.wait_for_isr("whole", 4)
    # Cordoned brokers are left out, and named.
    commands.run("cluster", "cordon", "4")
    planned, _, said = commands.plan("t")
    assert "broker 4 is cordoned and left out: it keeps its 0 replicas and gets no others" in said
    assert planned and not any(4 in nodes for nodes in planned.values())
    # A plan onto a cordoned broker is refused whole, before anything is changed.
    onto = json.dumps({"partitions": [{"topic": "t", "partition": index, "replicas": [1, 4]} for index in (0, 1)]})
    before = commands.settings("t")
    refused = commands.run("reassign", "execute", "-", "--throttle", "1000", text=onto, ok=False)
    assert "t-0: broker 4 is cordoned" in refused.stderr and "Nothing was changed" in refused.stderr
    assert commands.settings("t") == before
    # Right after `uncordon` the same plan is accepted.
    for _ in range(3):
        commands.run("cluster", "uncordon", "4")
        commands.run("reassign", "execute", "-", text=onto)
        back = json.dumps({"partitions": [{"topic": "t", "partition": index, "replicas": [1, 2]} for index in (0, 1)]})
        commands.run("reassign", "execute", "-", text=back)
        commands.run("cluster", "cordon", "4")
        commands.run("reassign", "execute", "-", text=onto, ok=False)
    commands.run("cluster", "uncordon", "4")
    # A label that too few brokers carry: refused, and the label and the throttles are as before.
    before = commands.settings("whole")
    refused = commands.run("topics", "relabel", "whole", "x", "--throttle", "1000", ok=False)
    assert "4 replicas need as many brokers, there are 3" in refused.stderr
    assert commands.settings("whole") == before
    # A decommission that is not possible has not cordoned the broker.
    refused = commands.run("brokers", "decommission", "3", "--yes", ok=False)
    assert "can't be emptied" in refused.stderr and "Nothing was changed" in refused.stderr
    assert commands.settings("whole") == before


def test_plans_leave_out_brokers_in_maintenance_and_decommissioned_ones(start_cluster: StartCluster) -> None:
    cluster = start_cluster(4, {"offsets.topic.num.partitions": "2"}, labels=["x", "x", "x", ""])
    commands = Commands(cluster)
    spread = NewTopic("t", assignments={index: [1, 2] for index in range(4)})
    cluster.ask(lambda admin: admin.create_topics([spread]))
    cluster.wait_for_isr("t", 2)
    # A plan does not undo a maintenance.
    commands.run("brokers", "maintenance", "enable", "1")
    planned, document, said = commands.plan("t")
    assert "broker 1 is cordoned and left out: it keeps its 4 replicas" in said
    assert all(nodes[0] != 1 and 1 in nodes for nodes in planned.values())
    commands.run("reassign", "execute", "-", text=document)
    assert all(one.replicas[0] != 1 and 1 in one.replicas for one in cluster.partitions("t"))
    commands.run("brokers", "maintenance", "disable", "1")
    # A decommission says its rate, and what was just decommissioned gets nothing.
    done = commands.run("brokers", "decommission", "2", "--yes")
    assert "each broker copies at most 50000000 bytes per second (--throttle)" in done.stderr
    assert "broker 2 is empty, and cordoned" in done.stderr
    planned, _, said = commands.plan("t")
    assert "broker 2 is cordoned and left out" in said and not any(2 in nodes for nodes in planned.values())
    commands.run("topics", "relabel", "t", "x")
    assert {node for one in cluster.partitions("t") for node in one.replicas} == {1, 3}
    left = commands.settings("t")
    assert not any(name.split()[-1] in (*RATES, *THROTTLED) for name in left), "the throttles are removed"


def test_a_smooth_expansion_says_what_it_waits_for(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    commands = Commands(cluster)
    cluster.ask(lambda admin: admin.create_topics([NewTopic("t", assignments={0: [1, 2]})]))
    fill(cluster, "t")
    cluster.ask(lambda admin: admin.alter_group_offsets("late", {("t", 0): 100}))
    plan = json.dumps({"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 3]}]})
    done = commands.run("reassign", "execute", "-", "--from-latest", "20s", text=plan)
    assert "t-0 waits until " in done.stderr and " for the idempotent producer " in done.stderr, done.stderr
    assert "t-0 waits for group late, which is at offset 100, to read up to 300" in done.stderr
    assert cluster.partitions("t")[0].replicas == (1, 3)
