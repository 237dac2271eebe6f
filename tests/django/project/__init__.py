"""A small Django project, run in processes of its own because Django's settings are a process's."""
