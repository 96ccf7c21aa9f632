"""Tenure's own lints: rules that no general tool knows. `python -m scripts.lints` runs them over the repository.

One module holds one rule, its docstring the reason. RULES is the list; nothing is found by scanning. A line that must
break a rule says `# allow <rule>: <reason>`. What ruff, mypy or import-linter can hold is not repeated here.
"""

from __future__ import annotations

from scripts.lints import (
    dialect_names,
    file_length,
    middleware,
    places,
    sleeping_tests,
    sql_text,
    swallowed_errors,
)
from scripts.lints.rule import Problem, Rule, Source

__all__ = ["RULES", "Problem", "Rule", "Source"]

RULES: tuple[Rule, ...] = (
    dialect_names.RULE,
    file_length.RULE,
    middleware.RULE,
    places.RULE,
    sleeping_tests.RULE,
    sql_text.RULE,
    swallowed_errors.RULE,
)
