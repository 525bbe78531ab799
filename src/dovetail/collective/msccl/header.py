"""header: read and write the attributes of an <algo> element."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.collective.msccl.parts import FIFO_DEPTHS, MEANINGS, WORDS, Header
from dovetail.collective.msccl.scan import MAX_GPUS, Elements, whole
from dovetail.core import ProgramError

_NAMES = {  # attribute -> field
    "name": "name",
    "proto": "proto",
    "coll": "coll",
    "nchannels": "nchannels",
    "nchunksperloop": "nchunksperloop",
    "ngpus": "ngpus",
    "inplace": "inplace",
    "outofplace": "outofplace",
    "minBytes": "min_bytes",
    "maxBytes": "max_bytes",
    "nthreads": "nthreads",
}
_NEEDED = ("proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace")
_NUMBERS = ("nchannels", "nchunksperloop", "ngpus", "minBytes", "maxBytes", "nthreads")
_NO_END = 1 << 60
_MOST = {"nchannels": 1 << 16, "nchunksperloop": 1 << 24, "ngpus": MAX_GPUS, "nthreads": 1 << 16}


def read_header(elements: Elements, stem: str) -> Header:
    """Return the header of a scanned file. `stem`: default of its name. Raises ProgramError for a faulty attribute."""
    algo, where = elements.algo, f"{elements.place}:{elements.algo_line}"
    absent = [word for word in _NEEDED if word not in algo]
    if absent:
        what = f"this algo has no {' and no '.join(absent)}"
        raise ProgramError(what, where=where, hint=f"it needs {', '.join(_NEEDED)}")
    for word, known in (("proto", FIFO_DEPTHS), ("coll", MEANINGS)):
        if algo[word] not in known:
            what = f"no {'protocol' if word == 'proto' else 'collective'} '{algo[word][:24]}'"
            raise ProgramError(what, where=where, hint=f"one of {', '.join(known)}")
    values: dict[str, str | int | bool] = {"name": algo.get("name", stem), "proto": algo["proto"], "coll": algo["coll"]}
    values |= {_NAMES[word]: _number(word, algo[word], where) for word in _NUMBERS if word in algo}
    values |= {word: _flag(word, algo[word], where) for word in ("inplace", "outofplace") if word in algo}
    more = tuple((word, text) for word, text in algo.items() if word not in _NAMES)
    return Header(**values, more=more)  # type: ignore[arg-type]


def header_attributes(header: Header, dialect: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes of `header` in a dialect, in the order in which its tools write them."""
    yield "name", header.name
    for word in ("proto", "nchannels", "nchunksperloop", "ngpus"):
        yield word, str(getattr(header, word))
    yield "coll", WORDS[dialect].get(header.kind, header.coll) if header.kind != "custom" else header.coll
    yield "inplace", str(int(header.inplace))
    given = {"outofplace": header.outofplace, "minBytes": header.min_bytes, "maxBytes": header.max_bytes}
    if dialect != "msccl":
        away = not header.inplace if header.outofplace is None else header.outofplace
        given = {"outofplace": away, "minBytes": header.min_bytes or 0, "maxBytes": header.max_bytes or 0}
    elif header.max_bytes == 0:  # msccl has no word for "unlimited", and sizes must be less
        given["maxBytes"] = _NO_END
    given["nthreads"] = header.nthreads
    yield from ((word, str(int(value))) for word, value in given.items() if value is not None)
    yield from header.more


def _number(word: str, text: str, where: str) -> int:
    try:
        value = whole(text)
    except ValueError as error:
        raise ProgramError(f"{word}: {error}", where=where) from None
    least = 0 if word in ("minBytes", "maxBytes", "nthreads") else 1
    if not least <= value <= _MOST.get(word, (1 << 63) - 1):
        most = f", at most {_MOST[word]}" if word in _MOST else ""
        raise ProgramError(f"{word}={text}", where=where, hint=f"at least {least}{most}")
    return value


def _flag(word: str, text: str, where: str) -> bool:
    if text not in ("0", "1"):
        raise ProgramError(f"{word}='{text[:24]}'", where=where, hint="0 or 1")
    return text == "1"
