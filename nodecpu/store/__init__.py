"""The two SQLite databases."""
