"""Values and pure functions over torch: graphs, tensors, comparison, repro scripts, backends."""
