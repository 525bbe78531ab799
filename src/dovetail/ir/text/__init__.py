"""text: Programs as text and as JSON, written and read."""
