"""Places Learners and Synchronizer run in: the `Site` protocol and its adapters.

Adapters do what they are told and report what they see. Must never decide anything about a job and must not import
`diloco_operator.planning`.
"""
