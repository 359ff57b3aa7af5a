"""The Synchronizer process: owner of the outer parameters, of membership, of the work leases and of their log.

One engine thread changes state; everything it tells anyone is in the write-ahead log first. Decisions about rounds
are `algorithm.sync_round`'s. Nothing here may decide when a round closes, import the Learner, or speak gRPC, which is
`wire`'s.
"""
