"""The contract between operator, CLI and trainer: what a user writes, what is resolved, what processes tell each other.

pydantic, PyYAML and the standard library only. It must never import `diloco_operator`, `diloco_trainer`, kopf,
kubernetes or torch, nor open sockets or start threads: every side can import it at no cost. Files are touched by
`run_config.read_run_config` and the generator `crd` alone.
"""
