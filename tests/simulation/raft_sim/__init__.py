"""The simulation of the Raft core: one process, virtual time, one seed.

docs/internals/simulation.md is its manual.

Reading order: knobs.py (what a seed decides), simulation.py (the world and its clock), host.py (the driver),
disk.py, network.py, faults.py (what goes wrong), invariants.py (what must hold all the same).
"""
