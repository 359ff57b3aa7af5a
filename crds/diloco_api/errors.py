"""Errors a user can mend: one line that names what is wrong and where.

`SpecError` carries the text as it is shown, in a terminal or in the condition `Accepted`; `Problem` is one broken rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError


class SpecError(ValueError):
    """A manifest, file or argument is wrong. The text is shown as it is, without a traceback."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: the field's full path, the value found there and the rule it breaks."""

    path: str
    value: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: {self.rule}" if self.value else f"{self.path}: {self.rule}"


def spec_error(problems: Sequence[Problem], source: str = "") -> SpecError:
    """The first of at least one problem, and how many more there are, as one line; `source` is a file's name."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    where = f"{source}: " if source else ""
    return SpecError(f"{where}{problems[0]}{more}")


def first_problem(error: ValidationError) -> str:
    """The first problem of a pydantic validation as `field.path: what is wrong` (plus how many more there are)."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"]) or "document"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {first['msg']}{more}"
