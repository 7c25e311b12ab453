"""The person's terminal: command line, supervision, reports. Never imports torch, survives everything below it."""
