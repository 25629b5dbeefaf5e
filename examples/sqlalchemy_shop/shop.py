"""A shop on SQLAlchemy's ORM. `python shop.py ada 42` places an order."""

import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pillarbox import Event
from pillarbox.sqlalchemy import Outbox


class Base(DeclarativeBase):
    """The shop's own tables."""


class Order(Base):
    """What somebody ordered."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]


engine = create_engine("sqlite:///shop.db")
outbox = Outbox()


def place_order(session: Session, customer: str, total: int) -> Order:
    """Place an order in the caller's transaction."""
    order = Order(customer=customer, total=total)
    session.add(order)
    session.flush()  # the order gets its id
    payload = {"order_id": order.id, "customer": customer, "total": total}
    outbox.add(session, Event("OrderPlaced", payload, aggregate=("order", order.id)))
    return order


if __name__ == "__main__":
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        order = place_order(session, sys.argv[1], int(sys.argv[2]))
        print("placed order", order.id)
