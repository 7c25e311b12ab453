"""On PYTHONPATH in tests: puts the compiler faults that SLEUTH_TEST_FAULT and SLEUTH_TEST_ROW name into every process.

SLEUTH_TEST_DISK and SLEUTH_TEST_PAUSE are faults of the disk below the cases (`diskkit`). SLEUTH_TEST_BUILDS is where a
session of tests keeps what the C++ compiler said and made (`sparing`).
"""

import os

if os.environ.get("SLEUTH_TEST_BUILDS"):
    import sparing

    sparing.install(os.environ["SLEUTH_TEST_BUILDS"])

if os.environ.get("SLEUTH_TEST_FAULT"):
    import faultkit

    for fault in os.environ["SLEUTH_TEST_FAULT"].split(","):
        faultkit.install(fault)

if os.environ.get("SLEUTH_TEST_ROW"):
    import rowkit

    for row in os.environ["SLEUTH_TEST_ROW"].split(","):
        rowkit.install(row)

if os.environ.get("SLEUTH_TEST_DISK") or os.environ.get("SLEUTH_TEST_PAUSE"):
    import diskkit

    diskkit.install()
