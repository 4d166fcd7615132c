"""Well-formed requests that ask for very much: each is answered or refused, and takes no more than its share.

What has to hold: no answer is larger than a bound, the broker's memory stays under 300 MB, no traceback is logged (the
fixture looks), and other clients are served. How long others wait is measured by `python -m tests.extreme`, not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.broker.api.registry import served_versions
from pylogd.local.broker import BrokerProcess
from tests.extreme.access import Access
from tests.extreme.asking import Attacker, End
from tests.extreme.attacks import CONVERSATIONS, TABLE
from tests.extreme.brokers import SecuredBroker
from tests.extreme.messages import Sizes, extremes
from tests.extreme.state import SETTINGS, Known, make_doomed, prepare
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, check_serves, memory, reset_peak, wait_until
from tests.strangers.crowds import ATTACKS, Attack, Crowd, unfinished_frames

SIZES = Sizes(elements=2_000, data=4_000_000)
MOST_ANSWER = 17 << 20  # `response.max.bytes`, and what surrounds it
MOST_MEMORY = 300.0  # MB
MOST_BESIDE_FRAMES = 240.0
#: Seconds after which a request that may wait, such as a JoinGroup, is given up.
PATIENCE = 0.3
SLOW = 120.0
#: The scale of attacks that take many requests, and connections: an attack in full is for the long run.
SCALE = 0.05

VERSIONS = [(key, version) for key, (first, last) in served_versions().items() for version in sorted({first, last})]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Known]]:
    folder = tmp_path_factory.mktemp("extreme")
    broker = BrokerProcess(folder / "data", folder / "log", SETTINGS | {"auto.create.topics.enable": "false"})
    with RawClient(broker.address) as client:
        known = prepare(client)
    yield broker, known
    log = broker.log()
    assert broker.exit_code is None, log[-4000:]
    broker.stop()
    assert "Traceback" not in log and "internal error" not in log, log[-4000:]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_every_extreme_request(prepared: tuple[BrokerProcess, Known], api_key: int, version: int) -> None:
    broker, known = prepared
    reset_peak(broker.pid)
    attacker = Attacker(Access(broker.address))
    with RawClient(broker.address) as client:
        for request in extremes(api_key, version, known, SIZES):
            make_doomed(client)
            waits = request.may_wait
            outcome = attacker.ask(request, PATIENCE if waits else SLOW)
            assert outcome.size < MOST_ANSWER, request
            assert waits or outcome.end is not End.WAITING, request
    attacker.close()
    check_serves(broker.address)
    assert memory(broker.pid, "VmHWM") < MOST_MEMORY


@pytest.mark.parametrize("attack", TABLE)
def test_what_once_cost_seconds_or_hundreds_of_megabytes(start_broker: StartBroker, attack: object) -> None:
    broker = start_broker(settings=SETTINGS)
    with RawClient(broker.address) as client:
        known = prepare(client)
    attacker = Attacker(Access(broker.address))
    outcome = attacker.ask(attack(known, 1.0), SLOW)  # type: ignore[operator]
    assert outcome.end is not End.WAITING
    assert outcome.size < MOST_ANSWER
    assert memory(broker.pid, "VmHWM") < MOST_MEMORY
    check_serves(broker.address)
    attacker.close()


@pytest.mark.parametrize("attack", CONVERSATIONS)
def test_attacks_of_many_requests(prepared: tuple[BrokerProcess, Known], attack: object, tmp_path: Path) -> None:
    broker, _ = prepared
    reset_peak(broker.pid)
    with attack(Access(broker.address), SCALE):  # type: ignore[operator]
        check_serves(broker.address)
        assert memory(broker.pid, "VmHWM") < MOST_MEMORY


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), {"request.receive.timeout.ms": "1000"})
    yield broker
    log = broker.log()
    broker.kill()
    assert "Traceback" not in log and "internal error" not in log, log[-4000:]


@pytest.mark.parametrize(
    "attack", [one for one in ATTACKS if one.client is unfinished_frames], ids=lambda one: one.name
)
def test_unfinished_frames_that_come_again_and_again(secured: SecuredBroker, attack: Attack) -> None:
    """Each is cut off when others have waited for its memory, and its client comes again with another one.

    The second attack is made on what the first one left. Once 365 MB were resident then. About 75 are there before.
    """
    access = secured.attackers[0 if attack.secured else -1][0]
    with Crowd(attack, access) as crowd:
        wait_until(lambda: crowd.attempts >= 2 * attack.clients, "all were cut off, or as many")
        check_serves(secured.address)
    assert memory(secured.pid, "VmHWM") < MOST_BESIDE_FRAMES
