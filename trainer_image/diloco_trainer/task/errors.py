"""Errors of a task that its user can mend."""

from diloco_api.errors import SpecError


class DataError(SpecError):
    """The training data cannot be used; one line that names the file or field."""
