import pytest

# The contract is no test module by name, and its assertions should explain themselves all the same.
pytest.register_assert_rewrite("tests.unit.compute.contract")
