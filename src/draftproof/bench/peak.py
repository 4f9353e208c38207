"""The most memory that this process has held for a while, where the system tells."""

from __future__ import annotations

from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Resident bytes at most since it was made."""

    def __init__(self) -> None:
        self._able = _forgotten()

    def bytes(self) -> int | None:
        """None where the system does not tell, or does not forget what was before."""
        if not self._able:
            return None
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def _forgotten() -> bool:
    """Whether Linux began to look for the most anew."""
    try:
        _RESET.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True
