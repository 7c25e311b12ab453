"""What is pasted into or shipped beside written scripts: torch and the standard library only, in the order in which
they use each other; nothing here may import from another room."""
