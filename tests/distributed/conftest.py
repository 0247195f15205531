"""Nodes are sent to other processes by value: a test file cannot be imported there by its name."""

import sys

import cloudpickle
import pytest


@pytest.fixture(autouse=True)
def _send_test_functions_by_value(request):
    module = sys.modules[request.module.__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)
