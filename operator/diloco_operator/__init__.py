"""The operator: observes a DiLoCoJob, plans, commits its status, applies the plan.

Layers: `reconciler` and `local` above `hub` and `sites` (adapters to the outside world) and `planning` (pure).
Must never import the trainer, torch or grpc.
"""
