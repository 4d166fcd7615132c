"""What clients have pushed last: sums that do not go back, and bounds on client ids and names."""

from __future__ import annotations

from pylogd.base.limits.shares import Share
from pylogd.broker.telemetry import values
from pylogd.broker.telemetry.otlp import Gauge, Pushed
from pylogd.broker.telemetry.values import REST, PushedValues


def gauges(of: PushedValues) -> dict[tuple[str, str], Gauge]:
    found: dict[tuple[str, str], Gauge] = {}
    for _ in of.walk(found):
        pass
    return found


def gauge(**named: float) -> Pushed:
    return Pushed({name: Gauge(value, value) for name, value in named.items()})


def test_clients_of_one_id_are_shown_together() -> None:
    kept = PushedValues(lambda: 5)
    kept.put(b"1", "app", gauge(a=1.0, b=2.0))
    kept.put(b"2", "app", gauge(a=4.0))
    kept.put(b"3", "other", gauge(a=9.0))
    assert gauges(kept) == {("app", "a"): (4.0, 5.0), ("app", "b"): (2.0, 2.0), ("other", "a"): (9.0, 9.0)}
    kept.put(b"1", "app", gauge(b=3.0))  # what is not pushed again is gone
    kept.forget(b"3")
    assert gauges(kept) == {("app", "a"): (4.0, 4.0), ("app", "b"): (3.0, 3.0)}


def test_sums_stay_as_long_as_a_client_of_the_id_lives() -> None:
    kept = PushedValues(lambda: 5)
    kept.put(b"1", "app", Pushed(deltas={"n": 3.0}, totals={"t": 10.0}))
    kept.put(b"1", "app", Pushed(deltas={"n": 4.0}, totals={"t": 15.0}))
    kept.put(b"2", "app", Pushed(deltas={"n": 1.0}, totals={"t": 2.0}))
    assert kept.sums == {"app": {"n": 8.0, "t": 17.0}}
    kept.put(b"2", "app", Pushed(totals={"t": 1.0}))  # it began anew
    kept.forget(b"1")
    assert kept.sums == {"app": {"n": 8.0, "t": 17.0}}
    kept.forget(b"2")
    kept.forget(b"2")
    assert kept.sums == {}


def test_the_first_ids_have_values_of_their_own() -> None:
    kept = PushedValues(lambda: 2)
    for number in range(4):
        kept.put(b"%d" % number, f"c{number}", gauge(a=float(number)))
    assert gauges(kept) == {("c0", "a"): (0.0, 0.0), ("c1", "a"): (1.0, 1.0), (REST, "a"): (3.0, 5.0)}
    kept.put(b"x", "c1", gauge(a=7.0))
    assert gauges(kept)["c1", "a"] == (7.0, 8.0)
    kept.forget(b"0")
    kept.put(b"y", "c9", gauge(a=0.5))
    assert ("c9", "a") in gauges(kept)


def test_who_has_most_ids_gives_way_strangers_before_principals() -> None:
    ann, eve = Share("User:ann", True), Share("10.0.0.1", False)
    kept = PushedValues(lambda: 4)
    kept.put(b"ann", "ann-1", gauge(a=1.0), ann)
    for number in range(100):
        kept.put(b"%d" % number, f"e{number}", Pushed({"a": Gauge(1.0, 1.0)}, deltas={"n": 1.0}), eve)
    assert {label for label, _ in gauges(kept)} == {"ann-1", "e0", "e1", "e2", REST}
    kept.put(b"0", "e0", Pushed(totals={"t": 5.0}, deltas={"n": 1.0}), eve)
    kept.put(b"bob", "bob-1", gauge(a=2.0), Share("User:bob", True))
    assert {label for label, _ in gauges(kept)} == {"ann-1", "e1", "e2", "bob-1", REST}
    assert "e0" not in kept.sums
    kept.put(b"0", "e0", Pushed(totals={"t": 7.0}), eve)
    assert kept.sums[REST]["t"] == 2.0, "what it has counted since"
    for instance in (b"bob", *(b"%d" % number for number in range(100))):
        kept.forget(instance)
    assert {label for label, _ in gauges(kept)} == {"ann-1"} and kept.sums.keys() == {REST}
    kept.put(b"9", "e9", gauge(a=1.0), eve)
    assert ("e9", "a") in gauges(kept)


def test_no_id_has_values_of_its_own_where_none_may() -> None:
    kept = PushedValues(lambda: 0)
    kept.put(b"1", "app", gauge(a=1.0))
    assert gauges(kept) == {(REST, "a"): (1.0, 1.0)}


def test_an_id_that_looks_like_the_rest_is_the_rest() -> None:
    kept = PushedValues(lambda: 1)
    kept.put(b"1", REST, Pushed(deltas={"n": 1.0}))
    kept.put(b"2", "app", Pushed(deltas={"n": 2.0}))
    assert kept.sums == {REST: {"n": 1.0}, "app": {"n": 2.0}}


def test_names_are_bounded() -> None:
    kept = PushedValues(lambda: 2)
    kept.put(b"1", "c", gauge(**{f"m{number}": 1.0 for number in range(values.MOST_NAMES + 5)}))
    kept.put(b"1", "c", Pushed(deltas={"more": 1.0}, totals={"m1": 1.0}, ignored=2))
    assert kept.ignored == 5 + 1 + 2
    assert kept.sums == {"c": {"m1": 1.0}}
    kept.put(b"2", "d", Pushed(deltas={"more": 1.0}))  # of each client id
    assert kept.sums["d"] == {"more": 1.0}
    kept.forget(b"1")
    kept.put(b"3", "c", Pushed(deltas={"more": 1.0}))
    assert kept.sums["c"] == {"more": 1.0}
