"""advise: what to change in a traced program, with the seconds that each change saves."""
