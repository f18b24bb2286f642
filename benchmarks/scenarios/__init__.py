"""SwapNet's three scenarios: several networks under one budget, by a pool and by what others do."""
