"""Errors a user can mend: one line that names what is wrong and where."""

from pydantic import ValidationError


class SpecError(ValueError):
    """A manifest, file or argument is wrong. The text is shown as it is, without a traceback."""


def first_problem(error: ValidationError) -> str:
    """The first problem of a pydantic validation as `field.path: what is wrong` (plus how many more there are)."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"]) or "document"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {first['msg']}{more}"
