import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from serving import MODELS, served  # noqa: E402


@pytest.fixture(scope="session", params=list(MODELS))
def server(request):
    with served(MODELS[request.param]) as (url, name):
        yield {"base_url": url, "model": name}
