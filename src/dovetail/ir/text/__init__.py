"""text: write and read Programs as text; write them as JSON."""
