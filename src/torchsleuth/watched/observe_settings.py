"""What collectors are told beside their names, each in one environment variable. The front sets them, so no torch."""

from __future__ import annotations

# Set where the trace is to have each bytecode instruction.
INSTRUCTIONS_VARIABLE = "TORCHSLEUTH_TRACE_INSTRUCTIONS"
# The kinds of artefacts that the debug folder is to hold, comma separated.
ARTEFACTS_VARIABLE = "TORCHSLEUTH_ARTEFACTS"
TORCH_TRACE = "torch-trace"
# The parts of the compiler whose log is kept, comma separated.
LOG_VARIABLE = "TORCHSLEUTH_LOG"
