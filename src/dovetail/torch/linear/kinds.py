"""kinds: the kinds of linear layers, each named after the collective of its forward pass."""

GATHER, SCATTER, REDUCE = "all_gather", "reduce_scatter", "all_reduce"
COLUMNS = "all_gather_columns"  # an all-gather of columns, whose products with each rank's columns are added up
EXCHANGE = "all_to_all"  # of products that are added up where they arrive
GATHERS = (GATHER, COLUMNS)
