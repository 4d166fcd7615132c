"""How stages are named on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.client.deferred import Admin
from pylogd.services.audit.opening import InvalidStage, StageDescription, check_stages, make_stage, open_table
from pylogd.services.audit.windows import StageSpec


@pytest.mark.parametrize(
    ("text", "where", "spec"),
    [
        ("lake=table:/data/lake", "/data/lake", StageSpec("lake", "serving", has_offsets=False)),
        ("lake=table:s3://b/a=b/lake", "s3://b/a=b/lake", StageSpec("lake", "serving", has_offsets=False)),
        ("lake=table:/l,from=m", "/l", StageSpec("lake", "m", has_offsets=False)),
        ("m=cluster:a:1,b:2,group=g", "a:1,b:2", StageSpec("m", "serving")),
        ("m=cluster:a:1", "a:1", StageSpec("m", "serving", settle_ms=60_000)),
        ("m=cluster:a:1,settle=1.5,config=f", "a:1", StageSpec("m", "serving", settle_ms=1500)),
    ],
)
def test_stages_are_described_by_text(text: str, where: str, spec: StageSpec) -> None:
    found = StageDescription.parse(text)
    assert (found.where, found.spec) == (where, spec)


@pytest.mark.parametrize(
    "text", ["", "lake", "lake=/data", "lake=odd:/x", "a/b=table:/x", "lake=table:", "lake=table:/x,group=g"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidStage):
        StageDescription.parse(text)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["serving=table:/x"], "two stages named serving"),
        (["a=table:/x", "a=table:/y"], "two stages named a"),
        (["a=table:/x,from=m", "m=cluster:a:1"], "no cluster named m before it"),
        (["a=table:/x", "b=table:/y,from=a"], "no cluster named a before it"),
        (["m=cluster:a:1,settle=soon"], "not a number of seconds"),
        (["a=table:/x,markers=inside"], "markers=inside is neither true nor false"),
    ],
)
def test_stages_that_do_not_fit_together(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidStage, match=message):
        check_stages([StageDescription.parse(text) for text in texts])


def test_a_copy_that_tells_what_it_has_committed_is_not_waited_for() -> None:
    assert StageDescription.parse("m=cluster:a:1,via=mirror").spec == StageSpec("m", "serving")
    with pytest.raises(InvalidStage, match="via=odd is unknown"):
        check_stages([StageDescription.parse("m=cluster:a:1,via=odd")])


def test_tables_are_opened_by_their_format(tmp_path: Path) -> None:
    for name in (f"parquet:{tmp_path}", str(tmp_path), f"delta:{tmp_path}/delta"):
        table = open_table(name)
        table.refresh()
        assert (table.files(), table.position.offsets) == ([], {})


def test_a_file_of_properties_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    """It is read before the reactor runs, not by the function that makes the stage."""

    def make(text: str) -> None:
        make_stage(None, StageDescription.parse(text), Admin, None, lambda: 0, 5.0)

    with pytest.raises(InvalidStage, match=r"m: config=/nowhere: No such file"):
        make("m=cluster:a:1,config=/nowhere")
    (tmp_path / "odd").write_text("security.protocol=ODD")
    with pytest.raises(InvalidStage, match="m: config="):
        make(f"m=cluster:a:1,config={tmp_path}/odd")
    make("m=cluster:a:1")
