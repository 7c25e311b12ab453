"""Where a compiled graph leaves eager's way: node by node, kernel by kernel, as a stream."""
