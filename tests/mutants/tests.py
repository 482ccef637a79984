"""Which tests are to notice the changes of a module, and the options they are run with."""

from __future__ import annotations

from pathlib import Path

from tests.support import ROOT

OPTIONS = (
    *("-x", "-q", "-s", "--no-header", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-profile=mutants"),
)
"""-s: children share no capture file. Hypothesis is loaded before pytest could rewrite its assertions: no harm."""

_ELSEWHERE = {
    "nodecpu.dra.claims": ("unit/dra/test_values.py",),
    "nodecpu.dra.devices": ("property/test_slices_valid.py",),
    "nodecpu.dra.opaque": ("unit/dra/test_values.py",),
    "nodecpu.policy.affinity": ("unit/test_attraction.py",),
    "nodecpu.policy.allocate": ("unit/policy/test_resize.py", "unit/test_locality.py"),
    "nodecpu.policy.exclusive": ("unit/policy/test_resize.py", "unit/test_locality.py"),
    "nodecpu.policy.grants": ("unit/policy/test_links.py",),
    "nodecpu.policy.facts": ("unit/policy/test_grants.py", "unit/nri/test_convert.py", "unit/test_mirror_pods.py"),
    "nodecpu.policy.rearrange": ("unit/test_reconfigure.py",),
    "nodecpu.policy.requests": ("unit/policy/test_two_worlds.py",),
    "nodecpu.policy.export": ("unit/test_export.py",),
    "nodecpu.policy.ledger": ("unit/test_hotplug.py",),
    "nodecpu.policy.pull": ("unit/test_attraction.py", "unit/test_locality.py"),
    "nodecpu.policy.shared": ("unit/test_hotplug.py",),
}
"""Tests of modules that are not where the others' are."""


VALUES = ROOT / "tests" / "unit" / "policy" / "test_values.py"
"""The test of the form that all values have."""


def nearest(module: str) -> list[Path]:
    """Return the files of the module's own tests."""
    room, stem = module.split(".")[1:]
    tests = ROOT / "tests"
    own = [tests / "unit" / room / f"test_{stem}.py", tests / "property" / f"test_{stem}.py"]
    elsewhere = [tests / name for name in _ELSEWHERE.get(module, ())]
    return [path for path in (*own, *elsewhere, VALUES) if path.exists()]


def further(module: str) -> list[Path]:
    """Return the files of the other tests that are to notice."""
    room = module.split(".")[1]
    found = sorted((ROOT / "tests" / "unit" / room).glob("test_*.py"))
    found.append(ROOT / "tests" / "property" / "test_policy.py")
    return [path for path in found if path not in nearest(module)]
