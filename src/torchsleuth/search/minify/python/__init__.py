"""A failing program made small as Python text: statements, functions, classes, expressions, sizes.

`reduce` has the table and the order of work; `oracle` has each candidate run in a process of its own.
"""
