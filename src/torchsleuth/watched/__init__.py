"""What lives in the user's process: it watches the compiler's seams and keeps a record of every graph.

Everything in here imports the standard library and torch only, never raises into the user's program, and
leaves the user's results, output and exceptions as they are.
"""
