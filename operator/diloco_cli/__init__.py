"""The command line `diloco`: arguments, live view, drills, report. Decides nothing about training or placement.

It drives `diloco_operator` and reads the models of `diloco_api`; it must never import trainer code, torch or gRPC.
"""
