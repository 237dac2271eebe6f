"""A Django shop whose orders are reserved by actors: a row and a message in one `atomic` block."""
