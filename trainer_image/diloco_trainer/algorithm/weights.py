"""The weight of one contribution in a merge.

Tokens is Decoupled DiLoCo (arXiv 2604.21428, section 3.2): amount of data times mean batch size. Uniform is the mean of
DiLoCo (2311.08105) and Streaming DiLoCo (2501.18512). Does not normalise: `reduce.merge` does.
"""

from diloco_api.sync_policy import Weighting


def weight(rule: Weighting, c_tokens: int, c_steps: int) -> float:
    """Weight of a contribution of `c_tokens` tokens in `c_steps` inner steps; 0 when there was no step."""
    if c_tokens < 0 or c_steps < 0:
        raise ValueError(f"tokens ({c_tokens}) and steps ({c_steps}) of a contribution cannot be negative")
    if c_steps == 0:
        return 0.0
    if rule is Weighting.UNIFORM:
        return 1.0
    return c_tokens * (c_tokens / c_steps)
