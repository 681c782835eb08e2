"""Opens an address in a browser without naming it in a command: others of the machine may read every command's words.

The browser is given a file instead, which only this user can read and which leads to the address, as Jupyter does it.
"""

from __future__ import annotations

import html
import logging
import os
import platform
import shutil
import tempfile
import webbrowser
from pathlib import Path

log = logging.getLogger(__name__)

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>Tamis</title>
<p><a href="{address}">Open the explorer</a></p>
</html>
"""


class Doorway:
    """A file that leads to an address, there from `open` to `close`.

    Args:
        address: where it leads. Whoever reads the file can go there: it has mode 0600 and lies in a folder of 0700.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder: Path | None = None

    def open(self) -> bool:
        """Opens the address in the browser of whoever runs this; returns whether there is one.

        In WSL the browser is a program of Windows, which does not find the file: there it is given the address. What
        runs in WSL is its user's alone.

        Raises:
            OSError: the file cannot be written.
        """
        if "microsoft" in platform.release().lower():
            return _opened(self._address)
        self._folder = Path(tempfile.mkdtemp(prefix="tamis-explore-", dir=_place()))  # 0700
        path = self._folder / "explore.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(_PAGE.format(address=html.escape(self._address)))
        if not _opened(path.as_uri()):
            self.close()
            return False
        return True

    def close(self) -> None:
        """Removes the file: the browser has gone through it, or nothing answers at the address any more."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _place() -> Path | None:
    """Returns where the file may lie, None for the usual folder of temporary files.

    A browser that was installed as a snap has a /tmp of its own, and reads of the user's home what is not hidden.
    (One from Flatpak is handed the one file that it is to open.)
    """
    return Path.home() if (Path.home() / "snap").is_dir() else None


def _opened(address: str) -> bool:
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
