"""YAML as data, within bounds: no tags but the plain ones, no key twice, and no growth through aliases.

Also finds the lines of JSON, which is YAML as far as that goes. Anchors, aliases and merge keys are taken, because
contracts of one kind share their parts; what they expand to is counted.
"""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 100_000  # after aliases are followed
DEEPEST = 64
_PREFIX = "tag:yaml.org,2002:"
_TEXTS = frozenset({"str", "timestamp"})
_LOADER = yaml.SafeLoader


class Unusable(ValueError):
    """Text that is not taken. `line` from 1."""

    def __init__(self, line: int, detail: str) -> None:
        super().__init__(detail)
        self.line = line
        self.detail = detail


def load(text: str) -> tuple[Any, dict[str, int]]:
    """The one document, and the line of each thing by its JSON Pointer. Raises: Unusable."""
    reader = _Reader()
    root = _compose(text)
    if root is None:
        raise Unusable(1, "is empty")
    return reader.value(root, "", 0), reader.lines


def lines_of_json(text: str) -> dict[str, int]:
    """The lines of a JSON text; none if this reader cannot tell them."""
    reader = _Reader()
    try:
        root = _compose(text.replace("\t", " "))
        if root is not None:
            reader.value(root, "", 0)
    except Unusable:
        return {}
    return reader.lines


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        told = fault.problem or fault.context or "malformed"
        raise Unusable(mark.line + 1 if mark else 1, f"is not YAML: {told}") from None
    except yaml.reader.ReaderError as fault:
        raise Unusable(text.count("\n", 0, fault.position) + 1, "holds a character that YAML does not take") from None
    except (yaml.YAMLError, RecursionError):
        raise Unusable(1, "is not YAML, or nested too deep") from None


class _Reader:
    """Walks composed nodes. An alias is the same node again, so what it leads to is counted each time."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self._left = MOST_VALUES

    def value(self, node: yaml.Node, pointer: str, depth: int) -> Any:
        line = node.start_mark.line + 1
        self._left -= 1
        if self._left < 0:
            raise Unusable(line, "expands to too much through its aliases")
        if depth > DEEPEST:
            raise Unusable(line, "is nested too deep, or an alias leads back to itself")
        self.lines.setdefault(pointer, line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, pointer, depth)
        if isinstance(node, yaml.SequenceNode):
            self._plain(node, "seq")
            return [self.value(one, f"{pointer}/{index}", depth + 1) for index, one in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode), "there are three kinds"
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, pointer: str, depth: int) -> dict[str, Any]:
        self._plain(node, "map")
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == f"{_PREFIX}merge":
                for name, one in self._merged(value, pointer, depth):
                    merged.setdefault(name, one)
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_PREFIX}str":
                raise Unusable(line, "has a key that is no text")
            if key.value in own:
                raise Unusable(line, "has a key twice")
            place = f"{pointer}/{key.value[:64].replace('~', '~0').replace('/', '~1')}"
            self.lines[place] = line
            own[key.value] = self.value(value, place, depth + 1)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, pointer: str, depth: int) -> list[tuple[str, Any]]:
        """What `<<` brings: of several mappings the first one counts."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: list[tuple[str, Any]] = []
        for one in nodes:
            if not isinstance(one, yaml.MappingNode):
                raise Unusable(node.start_mark.line + 1, "merges what is no mapping")
            found += self.value(one, f"{pointer}/<<", depth + 1).items()
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_PREFIX)
        if kind in _TEXTS:
            return node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return self._constructor.construct_yaml_bool(node)
            if kind == "int":
                return self._constructor.construct_yaml_int(node)
            if kind == "float":
                return self._constructor.construct_yaml_float(node)
        except (ValueError, KeyError, IndexError):
            raise Unusable(node.start_mark.line + 1, f"has a malformed {kind}") from None
        raise Unusable(node.start_mark.line + 1, "has a tag that is not taken")

    def _plain(self, node: yaml.Node, kind: str) -> None:
        if node.tag != f"{_PREFIX}{kind}":
            raise Unusable(node.start_mark.line + 1, "has a tag that is not taken")
