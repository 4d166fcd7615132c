"""The generated message classes and their table."""

from __future__ import annotations

import importlib
import typing

import pytest

from pylogd.wire.messages import APIS, ApiInfo, ApiKey
from pylogd.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from pylogd.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from pylogd.wire.schema import load_schema
from pylogd.wire.values import Message


@pytest.mark.parametrize("info", APIS.values(), ids=lambda info: info.name)
def test_messages(info: ApiInfo) -> None:
    module = importlib.import_module(f"pylogd.wire.messages.{info.module}")
    for role in ("Request", "Response"):
        cls = getattr(module, info.name + role)
        assert (info.key, info.name) == (cls.API_KEY, cls.API_NAME)
        names = [field["name"] for field in load_schema(info.key)[role.lower()]]
        assert list(cls.__slots__) == list(cls().field_values()) == names
        assert cls() == cls()
        assert not hasattr(cls(), "__dict__")
        assert set(typing.get_type_hints(cls)) == {*names, "API_KEY", "API_NAME"}
        if names:
            assert cls.__init__.__code__.co_filename == module.__file__, "compiled whenever a process starts"


def test_defaults_are_not_shared() -> None:
    fetch = importlib.import_module("pylogd.wire.messages.fetch")
    first, second = fetch.PartitionData(), fetch.PartitionData()
    first.current_leader.leader_id = 5
    first.aborted_transactions.append(fetch.AbortedTransaction())
    assert second == fetch.PartitionData()


def test_table() -> None:
    assert {key.value for key in ApiKey} == set(APIS)
    for key, info in APIS.items():
        schema = load_schema(key)
        assert (schema["key"], schema["api"], ApiKey(key).name) == (key, info.name, info.module.upper())
        assert schema["flexible"] == f"{info.flexible_from}+"


@pytest.mark.parametrize(
    "message",
    [
        SaslAuthenticateRequest(b"\0alice\0secret"),
        SaslAuthenticateResponse(auth_bytes=b"secret"),
        RenewDelegationTokenRequest(b"secret"),
        AlterUserScramCredentialsRequest(upsertions=[ScramCredentialUpsertion("alice", 1, 4096, b"salt", b"secret")]),
    ],
)
def test_secrets_are_not_shown(message: Message) -> None:
    assert "secret" not in repr(message) and "(hidden)" in repr(message)
