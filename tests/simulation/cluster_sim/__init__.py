"""The whole cluster in one process under virtual time: real agents on a simulated loop, network and disks.

Law of this package: what runs is the product's code, unchanged; only what the operating system would give it
is made here, and everything that chance decides comes from one seed.
"""
