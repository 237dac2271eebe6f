"""The shop's own history."""
