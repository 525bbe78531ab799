"""analysis: messages, collectives, waits, delays and statistics of a trace, and the model by which it is replayed."""
