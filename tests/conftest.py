"""Hypothesis as every test has it: no deadline, and examples that change only when the test does."""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# On a shared machine a deadline measures the neighbours, not the code, and so does what is too slow to draw.
# Where Hypothesis finds the variable CI it would take a profile of its own, that passes over the seed: other
# examples were drawn there than on anybody's desk.
settings.register_profile(
    "shared machine",
    settings.get_profile("default"),
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")

# Hypothesis mixes numbers and texts that stand in the code under test into its examples. With them any
# changed constant anywhere, and the order of imports, would draw others from the same seed, and a red example
# could not be run again. The campaigns, which look for new examples, leave them in.
# It is not called here: where a module of ours came before pytest it would write files, and be refused.
assert callable(providers._get_local_constants)
assert providers.Constants().integers is not None
providers._get_local_constants = providers.Constants
