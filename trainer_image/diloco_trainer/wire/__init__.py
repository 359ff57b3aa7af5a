"""The protocol between Learners and Synchronizer: messages, tokens at the door, chunks, refusals, retries.

The only package that speaks gRPC; nothing of gRPC leaves it. It must never decide anything about training: what a
message means is settled by the Synchronizer's engine and the Learner.
"""

import os

# Read by gRPC when it is first imported. Its own log lines (connection refused and the like) are no news: every
# failure reaches the caller as a WireError.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
