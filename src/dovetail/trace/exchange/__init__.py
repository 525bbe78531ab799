"""exchange: traces of other tools, read and written."""
