"""analysis: what a trace says: messages and collectives, waits, delays, statistics, the story to replay."""
