"""The search host: decides what to ask next about a failure. It asks, and runs nothing itself."""
