"""Deletes whatever is settled, at once, again and again, until it is killed.

python -m tests.integration.postgres_pruner URL [archive]
"""

import asyncio
import sys
from datetime import timedelta

from pillarbox.errors import StoreError
from pillarbox.ports import Retention
from pillarbox.settings import Settings
from pillarbox.wiring import open_admin

AT_ONCE = Retention(published=timedelta(0), archive=timedelta(0))


ARCHIVED_FIRST = Retention(published=timedelta(0), archive=timedelta(days=1))


async def prune(url: str, retention: Retention) -> None:
    while True:
        try:
            async with open_admin(Settings(database=url)) as admin:
                while True:
                    print(await admin.prune(retention), flush=True)
                    await asyncio.sleep(0.05)
        except StoreError as error:  # the server is being killed as well
            print(error, flush=True)
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(prune(sys.argv[1], ARCHIVED_FIRST if sys.argv[2:] else AT_ONCE))
