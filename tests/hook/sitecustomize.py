"""On PYTHONPATH in tests: puts the compiler fault named by SLEUTH_TEST_FAULT into every Python process."""

import os

if os.environ.get("SLEUTH_TEST_FAULT"):
    import faultkit

    faultkit.install(os.environ["SLEUTH_TEST_FAULT"])
