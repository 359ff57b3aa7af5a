"""The program inside the pods of a DiLoCoJob: Learners that train and the Synchronizer that keeps the outer parameters.

`algorithm` decides and computes, `wire` carries, `learner` and `synchronizer` are the two processes. This package never
imports the operator: the two sides share `diloco_api` and nothing else.
"""
