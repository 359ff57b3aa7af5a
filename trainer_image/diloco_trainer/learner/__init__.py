"""One Learner: a training thread that owns the model and an exchange thread that speaks to the Synchronizer.

Reading order: `core` (what training does to the model), `uplink` and `downlink` (contributions and anchors as
values), `exchange` (the thread with the connection), `loop` (the training thread). Must never decide about rounds,
versions or leases: the Synchronizer does; must never import the operator.
"""
