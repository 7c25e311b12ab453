"""What one process says to another, or leaves on disk for it: dataclasses, one codec, one way to write a file."""
