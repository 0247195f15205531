"""Processes for the tests of transports. Every leaf of version v is filled with v, so that a torn tree shows.

python hammer.py publish KIND PLACE SECONDS SIZE FIRST   publishes versions FIRST, FIRST + 1, ... as fast as it can
python hammer.py read KIND PLACE SECONDS TIMES           fetches until it has TIMES versions, and prints what it saw
KIND is memory (PLACE is a path) or wire (PLACE is an address); a publisher may be cut short by a kill.
"""

import json
import sys
import time

import numpy as np

RUN = "hammered"


def tree(version, size):
    """A tree of haiku's kind, with several leaves and dtypes."""
    filled = {f"layer_{i}": {"w": np.full((size, 8), version, np.float32)} for i in range(6)}
    return {**filled, "count": np.full((), version, np.int64), "bytes": np.full(size, version % 251, np.uint8)}


def is_whole(version, nest):
    leaves = [layer["w"] for name, layer in nest.items() if name.startswith("layer")]
    return (
        all((leaf == version).all() for leaf in leaves)
        and nest["count"] == version
        and (nest["bytes"] == version % 251).all()
    )


def publish(kind, place, seconds, size, first):
    if kind == "memory":
        from agentkit.variables import SharedMemoryPublisher

        publisher = SharedMemoryPublisher(place)
    else:
        from agentkit.variables.served import ServedPublisher

        publisher = ServedPublisher(RUN, place)
    version, end = int(first), time.monotonic() + float(seconds)
    publisher.publish(version, {"policy": tree(version, int(size))})
    print("published", flush=True)
    while time.monotonic() < end:
        version += 1
        publisher.publish(version, {"policy": tree(version, int(size))})
    publisher.close()
    print(json.dumps({"version": version}), flush=True)


def read(kind, place, seconds, times):
    if kind == "memory":
        from agentkit.variables import SharedMemorySource

        source = SharedMemorySource(place)
    else:
        from agentkit.variables.served import ServedSource

        source = ServedSource(place, RUN)
    held, told = -1, {"fetched": 0, "torn": 0, "errors": 0, "backwards": 0}
    print("reading", flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end and told["fetched"] < int(times):
        try:
            found = source.get(["policy"], newer_than=held)
        except (ConnectionError, TimeoutError):
            told["errors"] += 1
            time.sleep(0.01)
            continue
        if found is not None:
            told["fetched"] += 1
            told["torn"] += not is_whole(found.version, found.variables["policy"])
            told["backwards"] += found.version < held
            held = found.version
    print(json.dumps({**told, "version": held}), flush=True)


if __name__ == "__main__":
    {"publish": publish, "read": read}[sys.argv[1]](*sys.argv[2:])
