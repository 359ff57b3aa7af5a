"""Kubernetes manifests as plain dicts: functions from a job's facts to an object, one module per kind of thing.

They build; when something is applied or removed is decided elsewhere. Must never read anything but their arguments.
"""
