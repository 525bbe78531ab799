"""tiling: tile iteration spaces by parallelepipeds: legality, cost, search, and C that visits the tiles."""
