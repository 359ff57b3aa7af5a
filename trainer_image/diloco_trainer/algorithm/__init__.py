"""The mathematics and the decisions of DiLoCo, Streaming DiLoCo and Decoupled DiLoCo as pure functions and values.

Everything a process needs to know comes in as an argument: tensors, clocks, seeds, events. This package must never open
a socket or a file, start a thread, read a clock, the environment or a source of randomness. Results are bit-identical
whatever the order of arrival, the number of threads and the width of the vector unit: no fused multiply-add, reductions
as fixed trees over fixed chunks.
"""
