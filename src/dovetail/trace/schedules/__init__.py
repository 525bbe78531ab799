"""schedules: read files of other tools that say what ranks do, but not when; the simulator replays them."""
