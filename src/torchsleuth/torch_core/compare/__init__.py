"""Comparing models: when is a result the same, and when is a compiled result wrong?

`same` and `two_models` compare with tolerances; `verdict` compares with the rounding noise of the graph itself;
`divergence` says where a compiled graph leaves eager's way. `reference` holds the runs that all of them compare with.
"""
