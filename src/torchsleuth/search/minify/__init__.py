"""The smallest graph, inputs and settings - or the smallest program - that fail the same way.

Read in this order: `contract` (states, edits, oracles), `reducers` (the table of what makes a graph smaller), `driver`
(their order), `engine` (asks, remembers, accepts), `subsets` (which of many are needed), `oracle` (the one boundary to
the processes that run something). `python` is the same for programs as text. `minify_case`, `minify_program` and
`script_cases` begin and end with a case on disk.
"""
