"""A training run that fits two CPU cores and six minutes: task, model, command line, and a runner that watches it."""
