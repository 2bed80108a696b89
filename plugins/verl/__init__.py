"""verl adapter: switched on by `+slipstream=...` on a verl command line, inert otherwise."""
