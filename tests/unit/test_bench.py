"""The parts of a bench that need no server: what events look like, what is drawn, what is never dropped."""

import json
from uuid import uuid4

import pytest

from pillarbox import Settings
from pillarbox.bench.load import LARGEST, SMALLEST, Load, id_of, number_of
from pillarbox.bench.options import Options
from pillarbox.bench.places import place_for
from pillarbox.bench.plot import Bar, plot
from pillarbox.bench.postgres import PostgresPlace
from pillarbox.bench.rows import Row
from pillarbox.errors import ConfigError
from pillarbox.settings.tables import HealthSettings, InboxSettings, OutboxSettings


@pytest.mark.parametrize("payload", [SMALLEST, 100, 310, 4096, LARGEST])
def test_a_payload_has_the_size_that_was_asked_for(payload: int) -> None:
    for n in (0, 7, 999_999_999):
        size = len(json.dumps(Load(payload).event(n).payload, separators=(",", ":")))
        assert payload - 12 < size <= payload


def test_events_are_of_as_many_aggregates_as_were_asked_for() -> None:
    assert len({Load(100, 7).event(n).aggregate for n in range(100)}) == 7


def test_an_event_is_known_again_by_its_id() -> None:
    assert [number_of(str(id_of(n))) for n in (0, 1, 12_345_678)] == [0, 1, 12_345_678]
    assert number_of(str(uuid4())) is None
    assert number_of(str(Load().plain(3).id)) is None


def test_a_plot_names_every_figure_and_marks_what_misses_its_goal() -> None:
    drawn = plot("a < b", [Bar("drain", 2.0, "events/s", 1.0), Bar("idle", 3.0, "ms", missed=True)])
    assert drawn.startswith("<svg ")
    assert "a &lt; b" in drawn
    assert drawn.count("<rect") == 4  # the ground, two bars of ours, one reference
    assert drawn.count('fill="#a22"') == 1


def test_a_figure_without_a_reference_has_no_ratio() -> None:
    assert Row("a", "a", 2.0, "s", 4.0, "b").as_dict()["ratio"] == 0.5
    assert Row("a", "a", 2.0, "s").as_dict()["ratio"] is None
    assert Row("a", "a", 2.0, "s", 0.0, "b").as_dict()["ratio"] is None


def test_only_what_is_asked_for_is_announced() -> None:
    every, drain, idle = (Options(Load(), 1000, measurements=names).most_events() for names in (
        ("read", "drain", "sustained", "latency", "writer", "idle"), ("drain",), ("idle",),
    ))  # fmt: skip
    assert idle == 0
    assert drain == 1500
    assert every > 6 * drain


def test_no_schema_but_a_bench_s_own_is_ever_dropped() -> None:
    for schema in ("public", "pillarbox_bench", "pillarbox_bench_shop", "pillarbox_bench_0123456789abc"):
        settings = Settings(database="postgresql://127.0.0.1:1/shop", outbox=OutboxSettings(schema=schema))
        with pytest.raises(ValueError, match="is no schema of a bench"):
            PostgresPlace(settings, "topic").drop()


def test_what_others_would_notice_of_a_relay_is_left_out_of_its_settings() -> None:
    mine = Settings(
        database="postgresql://shop@db/shop",
        broker="redis://localhost",
        health=HealthSettings(listen="127.0.0.1:9464"),
        inbox=InboxSettings(concurrency=3, mode="store", hint="redis://localhost"),
    )
    theirs = place_for(mine).settings
    assert (theirs.health.listen, theirs.inbox.hint, theirs.inbox.mode) == (None, None, "handle")
    assert theirs.outbox.schema.startswith("pillarbox_bench_")
    assert (theirs.database, theirs.broker, theirs.inbox.concurrency) == (mine.database, mine.broker, 3)


def test_two_runs_never_meet() -> None:
    mine = Settings(database="postgresql://shop@db/shop", broker="redis://localhost")
    assert place_for(mine).topic != place_for(mine).topic


def test_a_broker_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="stdout: prints every event"):
        place_for(Settings(database="postgresql://shop@db/shop", broker="stdout:"))
