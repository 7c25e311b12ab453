"""Is a compiled result wrong? Evidence from one captured graph (truth, rounding noise) and the verdict on it."""
