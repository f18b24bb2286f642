"""Two networks in one budget: pool.py BUDGET LIBRARY LIBRARY PICTURE."""

import sys

import numpy as np

import flexcomp

budget, *libraries, picture = sys.argv[1:]
with flexcomp.Pool(int(budget)) as pool:
    futures = []
    for name, library, urgency in zip(("first", "second"), libraries, (2.0, 1.0), strict=True):
        pool.add(name, library, urgency=urgency)  # a second of the first network counts twice
        port = pool.inputs(name)[0]
        futures.append(pool.submit(name, {port.name: np.fromfile(picture, "float32").reshape(port.shape)}))
    for future in futures:
        (scores,) = future.result().values()
        print(f"class {scores.argmax()}")
    print(f"{pool.stats()['claimed_bytes']} of {pool.budget} bytes")
