"""A dashboard in another process: reads the state of the running job `temperatures`. It needs neither Spark nor Java.

Run, while queryable.py runs: python examples/temperature/dashboard.py HOST PORT
"""

import sys

from qstate.client import QueryableStateClient

SENSORS = ("attic", "cellar", "kitchen")
WINDOWS = tuple(f"00:00:{second:02}" for second in range(0, 60, 10))


def print_dashboard(host, port):
    """Print the maximum of each sensor (rows) in each ten seconds (columns)."""
    with QueryableStateClient(host, port) as client:
        print(f"{'':8}", *WINDOWS)
        found = {window: client.get_many("temperatures", "maximum", SENSORS, namespace=window) for window in WINDOWS}
        for sensor in SENSORS:
            views = [found[window][sensor] for window in WINDOWS]
            print(f"{sensor:8}", *(f"{view.get():8.1f}" if view else f"{'-':>8}" for view in views))


if __name__ == "__main__":
    print_dashboard(sys.argv[1], int(sys.argv[2]))
