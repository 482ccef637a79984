"""The local socket that the CLI talks to."""
