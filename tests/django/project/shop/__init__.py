"""Orders, and the actors that they are told to."""
