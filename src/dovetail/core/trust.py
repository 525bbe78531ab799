"""trust: find out whether another user could change a file or folder; Dovetail does not load such files."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from dovetail.core.errors import RunError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0


def folder_danger(place: Path) -> str | None:
    """Return who else could change the contents of the folder `place`; None if only this user and root can.

    `place` must be resolved (`Path.resolve`). Checks every folder from the root down, so that nobody can exchange a
    folder after its check: other users cannot rename entries of a checked folder. A parent with the sticky bit, such
    as /tmp, passes, since only owners can rename entries there.
    """
    for folder in reversed(place.parents):
        found = os.lstat(folder)
        is_sticky = bool(found.st_mode & stat.S_ISVTX)
        if found.st_uid not in _system_users() and found.st_uid != os.geteuid():
            return f"{_user(found.st_uid)} owns {folder}"
        if not is_sticky and (why := _writers(found)):
            return f"{why} can write to {folder}"
    return _danger(os.lstat(place), place)


def link_danger(path: Path) -> str | None:
    """Return the other user who owns a symbolic link in `path`, and so could redirect it; None if there is none."""
    for part in (path, *path.parents):
        if part.is_symlink():
            found = os.lstat(part)
            if found.st_uid not in (os.geteuid(), ROOT):
                return f"{_user(found.st_uid)} owns the link {part}"
            if why := link_danger(part.parent / os.readlink(part)):
                return why
    return None


def file_danger(path: Path) -> str | None:
    """Return who else could have written the file `path`; None if only this user and root can."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no regular file"
    return _danger(found, path)


def read_own(path: Path) -> bytes:
    """Return the bytes of a file. Raise RunError if another user than this one or root owns it.

    The content may be executed, because it is unpickled.
    """
    with path.open("rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in (os.geteuid(), ROOT):
            hint = "choose a folder for the run that only you can write, with --out"
            raise RunError(
                f"{path} is not read: its content could run code", found=f"{_user(owner)} owns it", hint=hint
            )
        return file.read()


def _danger(found: os.stat_result, path: Path) -> str | None:
    if found.st_uid not in (os.geteuid(), ROOT):
        return f"{_user(found.st_uid)} owns {path}"
    why = _writers(found)
    return f"{why} can write to {path}" if why else None


def _writers(found: os.stat_result) -> str | None:
    """Return who else can write to a file with this mode and group; None: nobody."""
    if found.st_mode & stat.S_IWOTH:
        return "everyone"
    if found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid):
        return f"group {_group(found.st_gid)}"
    return None


def _is_own_group(gid: int) -> bool:
    """Return whether a group is this user's primary group, has the user's name, and has no other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


@cache
def _system_users() -> frozenset[int]:
    """Return root's uid and, in a user namespace, the overflow uid, which stands for unmapped users such as root."""
    try:
        rows = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        unknown = int(Path("/proc/sys/fs/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset({ROOT})
    return frozenset({ROOT} if rows == ["0", "0", "4294967295"] else {ROOT, unknown})


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"
