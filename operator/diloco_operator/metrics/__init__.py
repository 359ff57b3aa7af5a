"""What the operator exposes: series of its jobs from the views of their passes, and of its own process.

Names, labels and help come from `diloco_api.metrics`. Decides nothing; no series outlives its job.
"""
