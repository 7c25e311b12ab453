"""The road of a failure, from the program's run to its repro. Read in this order:

`program.py` runs the user's program and watches it from outside; `program_runs.py` makes cases of what it left, and
runs it again. `road.py` is the road itself, one case (`case_at_work.py`) after the other: settle (`settle.py`), locate,
blame, minify, cure, analyze. The search host (`host.py`) is asked for what needs torch; scripts run in fresh processes
(`scripts.py`). Where only the program shows the failure, `program_blame.py` and `program_cures.py` ask it, and
`whole_program.py` is the road of a program that is a case as a whole.
"""
