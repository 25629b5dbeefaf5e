"""An entry that the tests of several brokers send in every format, and what the CloudEvents SDK must read of it."""

from datetime import UTC, datetime
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.message import Delivery, decode


def an_entry() -> Entry:
    """Give an entry with whatever is not ASCII."""
    return Entry(
        position=1,
        event_id="01890a5d-ac96-774b-bcce-b302099a8057",
        aggregate_type="order",
        aggregate_id="Größe 7",
        event_type="OrderPlaced",
        topic="order-events",
        data='{"total": 42}',
        content_type=None,
        headers='{"shop": "Zürich"}',
        idempotency_key=None,
        number=None,
        available_at=None,
        occurred_at=None,
        created_at=datetime(2026, 11, 16, tzinfo=UTC),
    )


def check_cloudevent(event: Any) -> None:
    """Check what the SDK has read."""
    assert event.get_id() == an_entry().event_id
    assert event.get_type() == "OrderPlaced"
    assert event.get_subject() == "Größe 7"
    assert event.get_datacontenttype() == "application/json"
    assert event.get_extension("partitionkey") == "Größe 7"
    assert event.get_data() == {"total": 42}


def check_delivery(delivery: Delivery) -> None:
    """Check what our own subscriber has read."""
    event = decode(delivery)
    assert (str(event.id), event.type, event.payload) == (an_entry().event_id, "OrderPlaced", {"total": 42})
    assert event.aggregate == ("order", "Größe 7")
    assert event.headers == {"shop": "Zürich"}
    assert delivery.message.key == "Größe 7"
