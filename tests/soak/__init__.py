"""A node's life by the million events: everything that can happen, in any order, with the invariants after each."""
