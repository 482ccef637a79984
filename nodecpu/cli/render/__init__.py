"""Pictures and tables of a node's state as text (pure: a state in, text out)."""
