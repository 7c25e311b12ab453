"""The search host: one process per case that decides what to ask next; the front starts it, trials answer it."""
