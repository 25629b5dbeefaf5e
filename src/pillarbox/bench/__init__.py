"""The bench: how fast Pillarbox is on somebody's own database and broker. Most rows have a reference of the same run.
`make bench` in a clone of the repository measures with the same code.

options.py      what is measured, and how many events that takes at most
load.py         what the events look like
places.py       a schema or a file of its own, made and removed
postgres.py, sqlite.py
processes.py    writers, relays and consumers in processes of their own
usage.py        processor time, as the kernel counts it
drain.py        how fast relays empty an outbox, and what it costs
textbook.py     the loop that one writes first, as a reference
reading.py      the read side alone
writing.py      what an event costs the writer
live.py         while writers are at work
latency.py      from the commit until the broker has it, and until it is applied
idle.py         what a relay costs that has nothing to do
run.py          all of it, one after the other
rows.py         what was found
plot.py         bars
"""
