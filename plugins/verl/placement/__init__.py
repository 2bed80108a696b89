"""verl runs that share a Ray cluster: every stage of a trainer waits for its GPUs (`docs/placement.md`).

`trainer` puts the arbiter between the stages of verl's trainers, `devices` finds out which GPUs a run has, `records`
keeps what stages took, `queues` gives every run a TransferQueue of its own.
"""
