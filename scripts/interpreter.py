"""Finds a Python that is new enough. Law of this file: it must run on any Python 3, however old."""

import os
import shutil
import sys

MINIMUM = (3, 11)
NEWEST_MINOR = 15


def require():  # type: () -> None  # noqa: ANN201
    """Goes on under a newer interpreter when this one is too old; ends with one clear line without one."""
    if sys.version_info >= MINIMUM:
        return
    for minor in range(NEWEST_MINOR, MINIMUM[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)  # noqa: UP031
        if found:
            os.execv(found, [found] + sys.argv)  # noqa: S606, RUF005
    sys.stderr.write(
        "error: Shoal needs Python 3.11 or newer and this is %s: install a newer one and run the same "  # noqa: UP031
        "command again\n" % sys.version.split()[0]
    )
    sys.exit(2)
