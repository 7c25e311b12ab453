"""On PYTHONPATH in tests: puts the compiler fault named by SLEUTH_TEST_FAULT or SLEUTH_TEST_ROW into every process."""

import os

if os.environ.get("SLEUTH_TEST_FAULT"):
    import faultkit

    faultkit.install(os.environ["SLEUTH_TEST_FAULT"])

if os.environ.get("SLEUTH_TEST_ROW"):
    import rowkit

    rowkit.install(os.environ["SLEUTH_TEST_ROW"])
