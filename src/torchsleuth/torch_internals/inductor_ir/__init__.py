"""Graphs that Inductor has lowered, evaluated without code generation: enter by `lowering`."""
