"""The shop, as an application of the project."""
