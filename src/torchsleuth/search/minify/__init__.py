"""The smallest graph, inputs and settings that fail the same way."""
