"""pipeline: loop nests whose iterations depend on one another, as programs whose ranks compute tiles in a pipeline."""
