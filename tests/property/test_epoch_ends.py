"""Leader epochs end where Kafka's LeaderEpochFileCache says, whatever a broker led, copied, truncated and deleted."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.parts import Parts
from tests.unit.broker.replica.test_followed_partition import placed

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lead", "append", "follow", "copy", "truncate", "restart", "delete"]), st.integers(0, 4)
    ),
    max_size=25,
)


class KafkaEpochs:
    """The cache as Kafka keeps it: (epoch, start offset), ascending in both; a new leader adds its own epoch."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def assign(self, epoch: int, start: int) -> None:
        if not self.entries or self.entries[-1][0] != epoch:
            self.entries = [entry for entry in self.entries if entry[0] < epoch and entry[1] < start]
            self.entries.append((epoch, start))

    def truncate_end(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] < end]

    def truncate_start(self, start: int) -> None:
        before = [entry for entry in self.entries if entry[1] <= start]
        if before:
            self.entries[: len(before)] = [(before[-1][0], start)]

    def end(self, epoch: int, log_end: int) -> tuple[int, int]:
        if epoch < 0 or not self.entries or epoch > self.entries[-1][0]:
            return -1, -1
        if epoch == self.entries[-1][0]:
            return epoch, log_end
        end = next(start for later, start in self.entries if later > epoch)
        return max((known for known, _ in self.entries if known <= epoch), default=epoch), end


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_ends_are_kafkas(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as directory:
        parts = Parts(Path(directory))
        parts.create("t")
        partition = parts.set_state("t", replicas=(1, 2), isr=(1, 2))
        log, kafka, epoch, leads = partition.log, KafkaEpochs(), 0, True
        kafka.assign(0, 0)
        for step, number in steps:
            if step in ("lead", "follow"):
                epoch, leads = epoch + 1 + number, step == "lead"
                parts.set_state("t", leader=1 if leads else 2, leader_epoch=epoch)
                if leads:
                    kafka.assign(epoch, log.log_end_offset)
            elif step == "append" and leads:
                parts.append("t")
            elif step == "copy" and not leads:
                copied = max(epoch - number, log.epochs.latest, 0)  # the leader's records may be of earlier epochs
                kafka.assign(copied, log.log_end_offset)
                partition.append_fetched(placed(log.log_end_offset, copied), 0, 0)
            elif step == "truncate" and not leads:
                parts.logs.truncate_to("t", 0, max(log.log_end_offset - number, log.log_start_offset))
                kafka.truncate_end(log.log_end_offset)
            elif step == "restart" and not leads:  # as a follower that lacks what its leader has deleted
                parts.logs.begin_at("t", 0, log.log_end_offset + number)
                kafka.entries.clear()
            elif step == "delete":
                log.delete_records_before(min(log.log_start_offset + number, log.log_end_offset))
                kafka.truncate_start(log.log_start_offset)
            if leads:
                for asked in range(-1, epoch + 3):
                    assert partition.end_offset_for_epoch(asked) == kafka.end(asked, log.log_end_offset), asked
        parts.close()
