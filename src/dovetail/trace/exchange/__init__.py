"""exchange: read and write traces in the formats of other tools."""
