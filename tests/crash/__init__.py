"""The daemon killed at named points and at random moments, and looked at from outside."""
