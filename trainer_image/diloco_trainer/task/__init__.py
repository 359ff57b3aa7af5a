"""What is trained: model, data, inner optimizer, learning rate and evaluation of a job's `train` section.

Learners and the Synchronizer both build their Task from the same section, so everything here is a function of that
section alone: the same seed gives the same model and the same order of the data on every machine. Must never know of
fragments on the wire, versions, processes or the network.
"""
