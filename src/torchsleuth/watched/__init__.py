"""What lives in the user's process: it watches the compiler's seams and keeps a record of every graph.

Everything in here imports the standard library and torch only, never raises into the user's program, and
leaves the user's results, output and exceptions as they are.

Read in this order: `inject/sitecustomize` and `install` (how it comes into a process), `watch` (what happens at each
seam), `graph_record` and `flight` (what is on disk before anything is tried), `guard` and `shadow` (around a compiled
graph, and its results against eager's), `failures` (what is reported). Whole calls: `whole_calls`, `call_judge`,
`call_state`, `call_failures`. A call as a program: `call_source`, `value_source`, `embed_paste`, `embed_slice`.
"""
