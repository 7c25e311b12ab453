"""FX graphs as values: printed as Python source, read back, compared, and traced to the user's lines."""
