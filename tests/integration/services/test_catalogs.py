"""What every table promises, on real catalogs of Iceberg and on Delta in an object store: the contract's own tests.

Iceberg's REST catalog and Hive's metastore are real servers; S3 is moto's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table as Loaded

from conformance import checks
from pylogd.lake.tables.delta.table import DeltaLakeTable
from pylogd.lake.tables.iceberg.catalogs import TableName, open_catalog
from pylogd.lake.tables.iceberg.table import IcebergTable
from tests.catalogs.servers import Properties, hive_metastore
from tests.fakes import s3
from tests.unit.lake.tables.cases import Case, DeltaCase, IcebergCase
from tests.unit.lake.tables.test_contract import (  # noqa: F401 - the tests of this file
    test_a_commit_without_files_moves_the_position,
    test_a_crash_before_the_quarantine_is_complete,
    test_a_load_is_committed_once,
    test_a_recreated_topic_begins_again,
    test_a_slow_process_does_not_complete_an_old_load_again,
    test_a_table_that_does_not_exist,
    test_an_error_of_which_it_is_not_known_what_it_did,
    test_columns_are_added_before_a_load,
    test_commits_of_other_programs_do_not_hide_the_position,
    test_files_that_were_not_committed_are_not_in_the_table,
    test_leader_epochs_and_schemas_are_kept_with_the_offsets,
    test_loaders_of_different_partitions_do_not_disturb_each_other,
    test_loads_follow_each_other,
    test_of_two_loaders_of_a_partition_one_is_refused,
    test_random_loaders_that_die,
    test_the_layout_is_kept,
    test_the_quarantine_is_committed_with_the_rest,
    test_two_processes_may_make_the_same_table,
)

pytestmark = pytest.mark.timeout(300)
_NUMBERS = itertools.count(1)


class CatalogCase(IcebergCase):
    """An Iceberg table in the catalog that properties name, in a namespace of its own."""

    def __init__(self, directory: Path, properties: Properties) -> None:
        super().__init__(directory)
        self._properties = properties
        self._namespace = f"demo{next(_NUMBERS)}"

    @property
    def name(self) -> TableName:
        return TableName.parse(f"{self._namespace}.flights")

    def open(self) -> IcebergTable:
        return IcebergTable(open_catalog(self.name, self._properties), self.name)

    def loaded(self, suffix: str = "") -> Loaded:
        return open_catalog(self.name, self._properties).load_table((self._namespace, f"flights{suffix}"))


class S3DeltaCase(DeltaCase):
    """A Delta table in a bucket."""

    def __init__(self, directory: Path, address: str) -> None:
        super().__init__(directory)
        self._url = f"s3://{s3.S3Server.bucket}/flights{next(_NUMBERS)}"
        self._options = {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": s3.KEY, "AWS_SECRET_ACCESS_KEY": s3.SECRET,
            "AWS_REGION": s3.REGION, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def open(self) -> DeltaLakeTable:
        return DeltaLakeTable(self._url, self._options)

    def loaded(self, suffix: str = "") -> DeltaTable:
        return DeltaTable(f"{self._url}{suffix}", storage_options=self._options)


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Properties]:
    try:
        with hive_metastore(tmp_path_factory.mktemp("hive")) as properties:
            yield properties
    except checks.Missing as missing:
        pytest.skip(str(missing))


#: The case of each place, made from its fixture.
PLACES: dict[str, Callable[[Path, Any], Case]] = {"rest": CatalogCase, "hive": CatalogCase, "bucket": S3DeltaCase}


@pytest.fixture(params=PLACES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return PLACES[request.param](tmp_path, request.getfixturevalue(request.param))


@pytest.fixture
def recorded(case: Case) -> Case:
    return case


def test_the_columns_are_those_of_every_table(case: Case) -> None:
    """Also where a catalog has types of its own: Hive 2 has no time stamps with a zone."""
    table = case.made()
    case.load(table, 3)
    found = case.read()
    assert found.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert table.columns is not None and found.column_names == table.columns.names
