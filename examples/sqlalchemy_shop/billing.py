"""Billing on SQLAlchemy's ORM: an invoice per order, written once. `python billing.py` prints them."""

from dataclasses import dataclass

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from pillarbox import Event, Reject
from pillarbox.sqlalchemy import Inbox


class Base(DeclarativeBase):
    """Billing's own tables."""


class Invoice(Base):
    """What somebody owes."""

    __tablename__ = "invoices"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    customer: Mapped[str]
    total: Mapped[int]


@dataclass
class OrderPlaced:
    """The event, as far as billing cares."""

    order_id: int
    customer: str
    total: int


engine = create_engine("sqlite:///billing.db")
Base.metadata.create_all(engine)
inbox = Inbox("billing", sessionmaker(engine))


@inbox.handler("OrderPlaced", payload=OrderPlaced)
def bill(session: Session, event: Event[OrderPlaced]) -> None:
    """Write an invoice, in the transaction that also notes that this event was handled."""
    order = event.payload
    if order.total <= 0:
        raise Reject(f"order {order.order_id} has a total of {order.total}")
    session.add(Invoice(order_id=order.order_id, customer=order.customer, total=order.total))
    print("billed order", order.order_id, flush=True)


if __name__ == "__main__":
    with Session(engine) as session:
        for invoice in session.scalars(select(Invoice).order_by(Invoice.order_id)):
            print(f"{invoice.customer} owes {invoice.total} for order {invoice.order_id}")
