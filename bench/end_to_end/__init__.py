"""From a producer's send to a row that a query sees: `python -m bench end-to-end`, which writes bench/END_TO_END.md."""
