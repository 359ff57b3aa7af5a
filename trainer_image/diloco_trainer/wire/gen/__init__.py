"""Generated from `synchronizer.proto` by `make proto`; must never be edited by hand nor hold anything else."""
