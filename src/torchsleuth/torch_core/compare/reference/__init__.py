"""Runs of a graph to compare with: in float64, on copies of the inputs, from the same random state; and what kind of
step each of its nodes is as far as rounding goes."""
