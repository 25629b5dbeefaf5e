"""Mutants: rules that are broken on purpose, one at a time. `make mutants` shows that the tests notice each."""

from tests.mutants.reading import READING
from tests.mutants.receiving import RECEIVING
from tests.mutants.relaying import RELAYING

MUTANTS = (*RELAYING, *READING, *RECEIVING)
