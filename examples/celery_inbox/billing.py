"""Billing as a Celery task that has its effect once. `python -m celery -A billing:app worker` runs it."""

import os

import psycopg
from celery import Celery

from pillarbox import StoreUnavailable
from pillarbox.psycopg import Inbox


def connect() -> psycopg.Connection:
    return psycopg.connect("postgresql:///shop")


inbox = Inbox("billing", connect)
app = Celery("billing", broker=os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/"))
app.conf.task_default_queue = "billing"
app.conf.broker_transport_options = {"confirm_publish": True}  # a retry is acknowledged once its successor is sent


@app.task(
    name="billing.bill",
    acks_late=True,  # acknowledged after the commit, not before the task begins
    reject_on_worker_lost=True,  # and not at all if the process is killed: then it comes again
    autoretry_for=(psycopg.OperationalError, StoreUnavailable),  # what psycopg and the inbox say of such a database
    retry_backoff=True,  # a retry carries the same arguments, so the same id
    max_retries=None,
)
def bill(message_id: str, order: int, total: int) -> None:
    """Write an invoice, in the transaction that also notes that this message was received."""
    with connect() as connection:  # commits at its end
        if inbox.first_time(connection, message_id):
            connection.execute("INSERT INTO invoices (order_id, total) VALUES (%s, %s)", [order, total])
            print(f"billed order {order}", flush=True)  # in one piece: Celery makes each write a line of its log
