"""Every file of every kind of model folder, damaged in every way: it works as before, or ends in one of our errors.

Nothing else may come of it while the model is loaded, nor when it is used once: no traceback of a library, no more
memory than the model takes, no endless loop.
"""

import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from damage_of_models import corruptions_of
from model_kinds import KINDS

from tamis.core.errors import ModelError
from tamis.models.loading import forget_models

pytestmark = [pytest.mark.attack, pytest.mark.timeout(3600)]

#: No damage may keep a tiny model busy for longer, on a machine that does other work too.
SECONDS = 30

#: What one attempt may take beyond what the process has.
MEMORY = 1536 << 20


@pytest.mark.filterwarnings("ignore")  # libraries warn of what they find odd
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_model_works_or_ends_in_our_own_error(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    fixture, load = KINDS[kind]
    folder = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "model")
    load(str(folder))
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for name, corrupt in corruptions_of(file).items():
            forget_models()
            file.write_bytes(corrupt(whole))
            start, before = time.perf_counter(), _peak()
            what = f"{file.relative_to(folder)}: {name}"
            try:
                load(str(folder))
                ends["works"] += 1
            except ModelError as error:
                ends["refused"] += 1
                if str(folder) not in str(error) or len(str(error)) > 1500:
                    wrong.append(f"{what}: says {error}")
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {error}"[:300])
            if time.perf_counter() - start > SECONDS:
                wrong.append(f"{what}: {time.perf_counter() - start:.0f} s")
            if _peak() - before > MEMORY:
                wrong.append(f"{what}: {(_peak() - before) >> 20} MiB")
        file.write_bytes(whole)
    record_property("measured", f"damage of a model, {kind}: {dict(ends)}")
    assert wrong == []


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
