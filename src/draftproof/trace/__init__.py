"""Traces: every round of every request as a line of JSON, told while they run, and read again as rounds.

    with trace.writing("rounds.jsonl") as writer:
        llm.traced(writer).generate("The sky is")
    [request] = trace.read("rounds.jsonl").requests
    trace.summed(request).accepted

The first line is a header. A request has a line when its first round is over, one for each round, and one when it ends;
docs/traces.md has them field by field.
"""

from .reader import Trace, Traced, origins_of, read, steps_of, summed
from .record import step_of
from .writer import VERSION, Tracer, TraceWriter, writing

__all__ = [
    "VERSION",
    "Trace",
    "TraceWriter",
    "Traced",
    "Tracer",
    "origins_of",
    "read",
    "step_of",
    "steps_of",
    "summed",
    "writing",
]
