"""PyTorch's own comparisons under their own names and arguments: `same`, `same_two_models` and what they rest on."""
