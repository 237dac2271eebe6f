"""The commands that run and operate akter; each is imported when it is called."""
