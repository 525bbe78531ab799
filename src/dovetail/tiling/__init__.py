"""tiling: parallelepiped tiles of iteration spaces: legality, cost, search, and C that visits them."""
