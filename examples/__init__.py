"""Programs that run on akter as it is installed."""
