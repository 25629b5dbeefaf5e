"""`python invoices.py` prints what everybody owes."""

import psycopg

with psycopg.connect("postgresql:///shop") as connection:
    for order, total in connection.execute("SELECT order_id, total FROM invoices ORDER BY order_id"):
        print(f"order {order}: {total}")
