"""Kubernetes' timestamps to unix seconds and back. Reads no clock."""

from datetime import UTC, datetime


def to_text(seconds: float) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_seconds(text: str) -> float:
    """Unix seconds of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()
