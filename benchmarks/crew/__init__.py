"""Programs that run in a process of their own, and in an environment of their own: a queue's worker, and whoever fills it."""
