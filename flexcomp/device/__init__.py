"""What is known of the machine that a network is built for: instructions, cores, storage, speed of kernels.

`target.py` is what people name, `presets.py` the devices known by name, `profile.py` what was measured of one.
"""
