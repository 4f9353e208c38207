"""draftproof doctor: what holds on this machine, measured."""

def doctor() -> None:
    """Measure."""
