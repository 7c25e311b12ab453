"""Where a wrong result begins: asked of trials by the search host, and of two models in a program's own process."""
