"""A failing program made small as Python text: statements, functions, classes, expressions, sizes.

`reduce_program` (in `reduce`) asks an oracle; `minify_program` has each candidate run in a process of its own.
"""
