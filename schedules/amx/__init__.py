"""Products of bfloat16 in the tiles of AMX."""
