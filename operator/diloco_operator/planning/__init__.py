"""What should be done about one job, decided from values alone.

`plan` maps (job, policy, observation, now) to a Plan. Must never touch sockets, clocks, files, environment, threads or
randomness, and must not know the adapters in `diloco_operator.sites` and `diloco_operator.hub`.
"""
