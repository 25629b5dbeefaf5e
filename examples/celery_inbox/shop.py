"""`python shop.py 1 2 3` sends three orders, each message three times: copies, as a lost confirmation makes them."""

import os
import sys
from uuid import uuid4

from celery import Celery

app = Celery(broker=os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/"))
app.conf.broker_transport_options = {"confirm_publish": True}  # no answer from the broker is an error here

if __name__ == "__main__":
    for order in map(int, sys.argv[1:]):
        message_id = str(uuid4())
        for _ in range(3):
            app.send_task("billing.bill", [message_id, order, 10 * order], queue="billing")
    print("sent", len(sys.argv) - 1, "orders, three times each")
