"""Compiled networks on devices reached by TVM's RPC: upload, run and time networks, and measure the device.

    with flexcomp.remote.connect("pi5.local:9090") as device:  # or connect(tracker="host:9190", key="pi5")
        network = device.upload("resnet50.so")
        with network.open(budget="16MB", threads=4) as session:
            outputs = session.run({"x": x})
            print(session.measure(repeat=20).median_ms)

The device runs a stock TVM RPC server, or the small one that `flexcomp remote server` makes. The library brings
flexcomp's runtime along, and measurements are made there: no network lies between two inferences.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    address="TrackedDevice open_direct open_tracker tracked_devices",
    device="Device connect",
    network="Measurement RemoteNetwork RemoteSession RemoteShape",
    profiling="observe_device profile",
    server="package_server",
)
