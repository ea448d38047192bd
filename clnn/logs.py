"""What CLNN_DEBUG shows: one logging level per rung, on the logger "clnn".

0 warnings, 1 devices and plan, 2 kernel times, 3 variants, 4 sources; each includes those before.
"""

from __future__ import annotations

import logging

from clnn.settings import setting

log = logging.getLogger("clnn")

PLAN, TIMES, VARIANTS, SOURCES = 20, 18, 10, 5
_LEVELS = (logging.WARNING, PLAN, TIMES, VARIANTS, SOURCES)


def configure(always: bool = False) -> int:
    """Set the logger to CLNN_DEBUG's level and return the rung, 0 to 4.

    Above 0, or with `always`, messages go to standard error, unless the program that uses clnn has
    arranged logging itself. Raises SettingError for a bad value.
    """
    rung = int(setting("CLNN_DEBUG"))
    if not rung and not always:
        return rung
    log.setLevel(_LEVELS[rung])
    arranged = logging.getLogger().handlers or any(
        not isinstance(handler, logging.NullHandler) for handler in log.handlers
    )
    if not arranged:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("clnn: %(message)s"))
        log.addHandler(handler)
    return rung
