"""The API server side."""
