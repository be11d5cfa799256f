"""What of a streaming query is kept in its checkpoint: its inputs, in their order, and its state.

`plan_of` reads both from Spark's plan, `difference` says why a query cannot go on with what another
one has left.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Of columns, objects and watermarks: they are other ones whenever a plan is made.
_IDS: Final = re.compile(r"#\d+L?|@[0-9a-f]+\b|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}, ")
_STATEFUL: Final = frozenset(
    """
    Aggregate Deduplicate DeduplicateWithinWatermark Distinct EventTimeWatermark
    FlatMapGroupsInPandasWithState FlatMapGroupsWithState GlobalLimit TransformWithState
    TransformWithStateInPandas TransformWithStateInPySpark
    """.split()
)
_LENGTH_MAX: Final = 1000
_OF_INPUTS: Final = {"subscribe": "topics", "subscribepattern": "pattern", "path": "table"}

SPARK: Final = "spark"

Plan: TypeAlias = Mapping[str, list[str]]
"""`inputs`, `steps`, and the release of Spark that has described them."""


def plan_of(rows: "DataFrame") -> dict[str, list[str]]:
    """The descriptions of the inputs and of the stateful steps of a streaming DataFrame."""
    inputs: dict[str, None] = {}
    steps = []
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if not node.isStreaming():
            continue
        if node.children().isEmpty():
            inputs[_input(node)] = None
        elif name in _STATEFUL or (name == "Join" and _joins_streams(node)):
            steps.append(_IDS.sub("", node.simpleString(_LENGTH_MAX)).strip())
    return {"inputs": list(inputs), "steps": steps, SPARK: [rows.sparkSession.version]}


def input_text(options: Mapping[str, str]) -> str:
    """An input by its options."""
    for name, kind in _OF_INPUTS.items():
        if name in options:
            return f"{kind} {options[name]}"
    return "assigned partitions"


def difference(before: Plan, now: Plan) -> str | None:
    """Why a query with the plan `now` cannot go on with a checkpoint of `before`."""
    for kind, what in (("inputs", "inputs"), ("steps", "stateful steps")):
        had, has = before.get(kind), now.get(kind)
        if kind == "steps" and before.get(SPARK) != now.get(SPARK):
            continue  # Another release may describe the same step in other words.
        if had is not None and has is not None and had != has:
            return (
                f"the checkpoint began with the {what} {_listed(had)}, and the query has "
                f"{_listed(has)}: these and their order may not change, outputs may. Give it a "
                "checkpoint of its own"
            )
    return None


def _listed(texts: list[str]) -> str:
    return "; ".join(texts) or "none"


def _nodes(plan: Any) -> Iterator[Any]:
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))
    yield plan


def _input(node: Any) -> str:
    if node.nodeName() != "StreamingRelationV2":
        return str(node.sourceName() if node.nodeName() == "StreamingRelation" else node.nodeName())
    given = {name: node.extraOptions().get(name) for name in _OF_INPUTS}
    return input_text({name: value for name, value in given.items() if value is not None})


def _joins_streams(join: Any) -> bool:
    children = join.children()
    return all(children.apply(at).isStreaming() for at in range(children.size()))
