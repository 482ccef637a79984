"""What has to be right around the daemon for it to work, looked at, with the remedy where it is not (E2)."""
