"""Cases of boxes that a kernel chooses."""

from __future__ import annotations

import numpy as np
from overlapping import boxes, rows_of
from simulator import DEVICE
from table import put

from clnn.ops.host.boxes import stay_by_numpy
from clnn.runtime.build.program import Device
from clnn.runtime.device import device
from clnn.runtime.stages.boxes import StayOnDevice

SIZES = (190, 1, 9)


def stay() -> None:
    found, begins = boxes(sum(SIZES), 5, 1)[0][0], np.concatenate([[0], np.cumsum(SIZES)])
    given = rows_of(found), begins, np.float32(0.3), 100
    on_device = StayOnDevice(Device.open(device.select(DEVICE)), None)
    np.testing.assert_array_equal(on_device(*given), stay_by_numpy(*given))


put("boxes_stay", stay, targets=("cpu",), quick=("cpu",))
