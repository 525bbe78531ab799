"""cache: the folder for results of builds and measurements, which no other user can write to."""

from __future__ import annotations

import atexit
import errno
import os
import pwd
import secrets
import shutil
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from dovetail.core.errors import EnvironmentFault
from dovetail.core.trust import file_danger, folder_danger, link_danger

ADVICE = "set DOVETAIL_CACHE to a folder that only you can write"
INSTEAD = "is used instead, on this host only. Try"


def cache_dir(part: str = "") -> Path:
    """Return the cache folder, or its subfolder `part`; make it if it is missing.

    The cache is $DOVETAIL_CACHE, else `dovetail` in $XDG_CACHE_HOME, else `dovetail` in ~/.cache. If that folder cannot
    be made or written, or another user owns it or can write to it, warn and return a private temporary folder instead.
    Raises EnvironmentFault if no temporary folder can be made either.
    """
    given = os.environ.get("DOVETAIL_CACHE")
    try:
        wanted = Path(given).expanduser() if given else _default()
        return _usable(wanted, part)
    except _Unsafe as danger:
        place = _private()
        warn_once(f"nothing is loaded from the cache {wanted}, because {danger}: {place} {INSTEAD}: {ADVICE}")
    except (OSError, RuntimeError) as error:
        place = _private()
        what = f"cannot write to the cache {given}" if given else "there is no cache folder to write"
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space there, or set DOVETAIL_CACHE to another folder" if is_full else ADVICE
        warn_once(f"{what} ({getattr(error, 'strerror', None) or error}): {place} {INSTEAD}: {hint}")
    try:
        return _usable(place, part)
    except (OSError, _Unsafe) as error:
        raise EnvironmentFault(f"cannot write to {place}", found=str(error), hint=ADVICE) from error


def is_cached(path: Path) -> bool:
    """Return whether the cache holds the file `path`. False, with a warning, if another user could have written it."""
    try:
        danger = file_danger(path)
    except OSError:
        return False
    if danger:
        warn_once(f"a cached file is not used, because {danger}: it is made again")
    return danger is None


@cache
def warn_once(text: str) -> None:
    """Issue a RuntimeWarning, once per process for each text."""
    warnings.warn(text, RuntimeWarning, stacklevel=4)


class _Unsafe(Exception):
    """Raised for a folder that another user could change."""


def _default() -> Path:
    """Return the folder `dovetail` in the user's cache folder. Raise OSError if the user has no home folder."""
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG Base Directory Specification requires relative paths to be ignored
        return Path(shared) / "dovetail"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise OSError(f"no home folder of uid {os.getuid()}") from None
    return Path(home) / ".cache" / "dovetail"


def _usable(wanted: Path, part: str) -> Path:
    """Make the folder, check that it is writable and safe, and return it resolved. Raise _Unsafe or OSError if not."""
    wanted = Path(os.path.abspath(wanted))
    place = wanted.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    _make(place)
    if danger := link_danger(wanted) or folder_danger(place):
        raise _Unsafe(danger)
    if part:
        place = place / part
        _make(place)
        if danger := link_danger(place) or folder_danger(place.resolve()):
            raise _Unsafe(danger)
    probe = place / f".writable-{secrets.token_hex(4)}"
    try:
        probe.write_bytes(b"\0")  # not empty: empty files can be made even on a full disk
    finally:
        probe.unlink(missing_ok=True)
    return place


def _make(place: Path) -> None:
    """Make a folder that only this user can read and write, unless it exists."""
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _private() -> Path:
    """Return this user's private temporary folder; if its name is taken by others, one for this process only."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    named = Path(tempfile.gettempdir()) / f"dovetail-{os.geteuid()}"
    for place in [Path(runtime) / "dovetail"] * os.path.isabs(runtime) + [named]:
        with suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
            if not place.is_symlink() and not folder_danger(place.resolve()) and os.access(place, os.W_OK):
                return place
    return _temporary(os.getpid())


@cache
def _temporary(process: int) -> Path:
    try:
        place = Path(tempfile.mkdtemp(prefix="dovetail-"))
    except OSError as error:
        raise EnvironmentFault("no cache folder can be made", found=error.strerror, hint=ADVICE) from error

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    return place
