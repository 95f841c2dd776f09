import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked, and skipped with the reason where there is no GPU."""
    for item in items:
        if item.path.parent.name != "gpu":
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="there is no GPU: torch.cuda.is_available() is False"))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
