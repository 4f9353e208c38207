"""Controllers: how much to draft. They see the past alone, so every rule stays lossless under them.

A controller joins CONTROLLERS, and with that the tests of what all of them promise.
"""

from .cost import Cost
from .costs import Costs
from .fixed import Fixed
from .record import Record
from .threshold import Threshold

CONTROLLERS = {"fixed": Fixed, "threshold": Threshold, "cost": Cost}

__all__ = ["CONTROLLERS", "Cost", "Costs", "Fixed", "Record", "Threshold"]
