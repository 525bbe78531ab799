"""analysis: facts about a recorded nest: dependences, order, errors, counts."""
