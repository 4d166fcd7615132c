"""The choice of a leader among registries, in the formats of Confluent's."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pylogd.services.registry.election import BadAssignment, Identity, assignment, leader_of

ONE, TWO, THREE = (Identity(f"host{number}", 8081) for number in (1, 2, 3))


def chosen(**members: Identity) -> str | None:
    found = leader_of(assignment({name: each.encoded() for name, each in members.items()}))
    return None if found is None else found[0]


def test_the_smallest_url_leads_and_a_leader_stays() -> None:
    assert chosen(b=ONE, a=TWO) == "b"
    assert chosen(b=ONE, a=replace(TWO, leads=True)) == "a"
    assert chosen(b=replace(ONE, eligible=False), a=TWO, c=THREE) == "a"
    assert chosen(b=replace(ONE, eligible=False, leads=True), a=TWO) == "a"
    assert chosen(a=replace(THREE, leads=True), b=replace(TWO, leads=True), c=ONE) == "c", "two say they lead: neither"
    assert chosen(a=replace(ONE, eligible=False)) is None


def test_members_of_other_programs() -> None:
    """Confluent's registry writes this, and members whose metadata can't be read do not lead."""
    theirs = b'{"version":1,"host":"host0","port":8081,"master_eligibility":true,"scheme":"https","leader":false}'
    found = leader_of(assignment({"a": theirs, "b": ONE.encoded(), "c": b"\xff", "d": b"[]", "e": b"{}"}))
    assert found == ("b", replace(ONE, leads=True)), "http comes before https"
    found = leader_of(assignment({"a": theirs}))
    assert found is not None and found[1].url == "https://host0:8081"
    document = json.loads(assignment({"a": theirs}))
    assert document["error"] == 0 and document["master"] == "a" and document["master_identity"]["host"] == "host0"


def test_the_same_url_twice_is_an_error() -> None:
    with pytest.raises(BadAssignment, match="--advertise"):
        chosen(a=ONE, b=ONE)


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"master":"a","master_identity":{"port":1}}'])
def test_assignments_that_can_t_be_read(text: bytes) -> None:
    with pytest.raises(BadAssignment):
        leader_of(text)


def test_urls() -> None:
    assert Identity("::1", 8081, "https").url == "https://[::1]:8081"
