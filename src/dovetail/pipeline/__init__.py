"""pipeline: nests whose iterations depend on one another, as programs of tiles that ranks compute in turn."""
