"""The options of ``sbatch``, ``srun`` and ``salloc`` as a request.

A line of options, with or without the command in front, or the ``#SBATCH`` lines of a
script. Generic resources (``--gres``) and ``--gpus-per-node`` are for each node,
``--gpus`` is for the whole job and is divided by ``--nodes``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.formats.asks import Beside, Devices, Options, Said, ask_of, request_of
from ledger.formats.documents import MAX_CHARS, NotTheFormat, shown
from ledger.formats.fields import Note
from ledger.formats.names import models_like
from ledger.formats.quantities import slurm_count, slurm_mib, slurm_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_slurm"]

_COMMANDS = ("sbatch", "srun", "salloc")
_SCRIPT = "#SBATCH"

#: Short options that take a value, and what they are short for.
_SHORT = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "S": "core-spec",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "i": "input",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
#: Options whose value, if any, is given with ``=`` only, long and short.
_BARE = frozenset(
    [
        "contiguous",
        "exclusive",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "nice",
        "no-kill",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    ]
) | frozenset("HIOQVWhksv")

_REASONS = {
    "array": "one request is for one of its tasks; send as many",
    "begin": "a request waits from when it is sent",
    "constraint": "features of nodes are not known here; give labels of a pool",
    "dependency": "a request does not wait for another",
    "exclusive": "a lease is for devices; nobody else gets those, but the node may be shared",
    "exclude": "nodes are not left out by name",
    "gpu-freq": "clocks are not set",
    "gpus-per-socket": "sockets are not known here; give --gpus-per-node",
    "licenses": "not read; give the request its licences by the names that they have here",
    "nodelist": "nodes are not asked for by name",
    "priority": "Slurm's priorities are of another scale; give one of your own",
    "nice": "Slurm's priorities are of another scale; give one of your own",
    "qos": "a queue and its rules are what comes next to it",
    "requeue": "give the request a number of retries",
    "reservation": "not read; name a reservation of the ledger in the request",
    "tres-per-task": "give --gres for each node",
    "tres-per-job": "give --gres for each node",
}
_OTHER = "does not say what is needed, or is not read"
_MULTI = "; lists and expressions of nodes are not read"
_PROFILE = re.compile(r"(?:(.+)_)?([1-9]g\.[0-9]{1,4}gb)(?:[.+](me|me\.all|gfx))?")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_KIND = re.compile(r"[!-~]{1,200}")
_MILLI = 1000
#: Slurm gives each device 100 of its MPS units unless a site says otherwise.
_MPS_OF = 100


@dataclass(slots=True)
class _Line:
    """The options of one line, each taken once, and the notes."""

    given: dict[str, str]
    notes: list[Note] = field(default_factory=list)

    def take(self, name: str) -> str | None:
        return self.given.pop(name, None)

    def note(self, name: str, reason: str) -> None:
        self.notes.append(Note(f"--{name}", reason))

    def whole(self, name: str, least: int = 1) -> int | None:
        text = self.take(name)
        if text is None:
            return None
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
            raise NotTheFormat(f"must be a whole number, at least {least}", f"--{name}")
        return int(text)


@dataclass(frozen=True, slots=True)
class _Gres:
    """One generic resource: its option, name, type and count for each node."""

    option: str
    name: str
    kind: str
    count: int


def read_slurm(
    line: str, options: Options | None = None
) -> tuple[dict[str, Any] | None, list[Note]]:
    """Return the request that the line asks for and what did not map.

    The request is None where one request cannot say it; a note says why. Raises
    `NotTheFormat` for what the command itself would refuse.
    """
    options = options or Options()
    read = _options_of(line)
    nodes = _nodes(read)
    tasks = _tasks_per_node(read, nodes)
    said = _said(read)
    gres = _all_gres(read, nodes, tasks)
    devices = _devices(read, gres, nodes, options)
    beside = _beside(read, tasks, devices)
    for name in sorted(read.given):
        read.note(name, _REASONS.get(name, _OTHER))
    if devices is None:
        return None, read.notes
    ask = ask_of(devices, "the line", read.notes)
    if ask is None:
        return None, read.notes
    return request_of(ask, beside, said, options, "the line", read.notes), read.notes


# -- the line -----------------------------------------------------------------------------


def _words(line: str) -> list[str]:
    if len(line) > MAX_CHARS:
        raise NotTheFormat(f"has more than {MAX_CHARS} characters")
    lines = [each.strip() for each in line.splitlines()]
    scripted = [each[len(_SCRIPT) :] for each in lines if each.startswith(_SCRIPT)]
    try:
        words = shlex.split(" ".join(scripted or lines), comments=False)
    except ValueError as error:
        raise NotTheFormat(f"not a command line: {error}") from None
    return words[1:] if words and words[0] in _COMMANDS else words


def _options_of(line: str) -> _Line:
    read = _Line({})
    words = iter(_words(line))
    any_option = False
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            script = " ".join([word, *words])
            read.notes.append(Note("the line", f"{shown(script)}: what runs is not the ledger's"))
            break
        any_option = True
        for name, value in _option(word, words):
            if name in read.given and read.given[name] != value:
                read.note(name, f"given twice; {shown(value)} is taken, as Slurm does")
            read.given[name] = value
    if not any_option:
        raise NotTheFormat("no option of sbatch, srun or salloc, such as --gres=gpu:1")
    return read


def _option(word: str, words: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of one word, with their values; takes the next word where it is one."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        if not _OPTION.fullmatch(name):
            raise NotTheFormat(f"{shown(word)} is no option of sbatch", "the line")
        if not equals and name not in _BARE:
            value = _value(f"--{name}", words)
        yield name, value
        return
    letter, rest = word[1], word[2:]
    if letter in _SHORT:
        yield _SHORT[letter], rest.removeprefix("=") or _value(word, words)
    elif letter in _BARE:
        yield from ((each, "") for each in word[1:] if each in _BARE)
    else:
        raise NotTheFormat(f"{shown(word)} is no option of sbatch", "the line")


def _value(option: str, words: Iterator[str]) -> str:
    value = next(words, None)
    if value is None:
        raise NotTheFormat("is the last word, and needs a value", option)
    return value


# -- what it says -------------------------------------------------------------------------


def _nodes(read: _Line) -> int:
    text = read.take("nodes")
    if text is None:
        return 1
    match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", text)
    if match is None or int(match[1]) < 1:
        raise NotTheFormat(f"must be a number or a range, not {shown(text)}{_MULTI}", "--nodes")
    if match[2] is not None and match[2] != match[1]:
        read.note("nodes", f"{text}: the least is asked for; a request has one size")
    return int(match[1])


def _tasks_per_node(read: _Line, nodes: int) -> int:
    each, total = read.whole("ntasks-per-node"), read.whole("ntasks")
    if each is not None:
        return each
    return 1 if total is None else -(-total // nodes)


def _said(read: _Line) -> Said:
    said = Said(task=read.take("job-name"), tenant=read.take("account"))
    partition = read.take("partition")
    if partition is not None:
        said.queue, _, others = partition.partition(",")
        if others:
            read.note("partition", f"{shown(others)} left out: a request waits in one queue")
    limit = read.take("time")
    if limit is not None and limit.upper() not in ("0", "UNLIMITED", "INFINITE"):
        said.max_run_s = slurm_seconds(limit)
        if said.max_run_s is None:
            message = "must be minutes, m:s, h:m:s, d-h, d-h:m or d-h:m:s"
            raise NotTheFormat(message, "--time")
    return said


def _all_gres(read: _Line, nodes: int, tasks: int) -> list[_Gres]:
    """Return everything asked for, for each node."""
    found = [
        _gres(option, text)
        for option in ("gres", "tres-per-node")
        for text in (read.take(option) or "").split(",")
        if text and text.lower() != "none"
    ]
    for option, times, parts in (
        ("gpus-per-node", 1, 1),
        ("gpus-per-task", tasks, 1),
        ("gpus", 1, nodes),
    ):
        texts = (read.take(option) or "").split(",")
        found += [_gpus(option, text, times, parts) for text in texts if text]
    return found


def _gres(option: str, text: str) -> _Gres:
    """Read ``name[:type][:count]``; in TRES it may be ``gres/name:type=count``."""
    bare = re.sub(r"^gres[/:]", "", text).replace("=", ":")
    name, *rest = bare.split(":")
    rest = [each for each in rest if each != "no_consume"]
    number = slurm_count(rest[-1]) if rest else None
    kinds = rest if number is None else rest[:-1]
    if not name or len(kinds) > 1 or not all(map(_KIND.fullmatch, kinds)):
        raise NotTheFormat(f"must be name[:type][:count], not {shown(text)}", f"--{option}")
    return _Gres(option, name, kinds[0] if kinds else "", 1 if number is None else number)


def _gpus(option: str, text: str, times: int, parts: int) -> _Gres:
    kind, _, number = text.rpartition(":")
    count = slurm_count(number)
    if count is None and not kind:
        kind, count = number, 1
    if count is None or (kind and not _KIND.fullmatch(kind)):
        raise NotTheFormat(f"must be [type:]number, not {shown(text)}", f"--{option}")
    if count % parts:
        reason = f"{count} cannot be divided by {parts} nodes; give --gpus-per-node"
        raise NotTheFormat(reason, f"--{option}")
    return _Gres(option, "gpu", kind, count * times // parts)


def _devices(read: _Line, gres: list[_Gres], nodes: int, options: Options) -> Devices | None:
    found = Devices(nodes=nodes, shares_of=options.shares)
    said: dict[str, list[_Gres]] = {}
    for one in gres:
        if one.name == "gpu" and one.count:
            said.setdefault(one.option, []).append(one)
    gpus = next(iter(said.values()), [])
    if len({tuple((one.kind, one.count) for one in each) for each in said.values()}) > 1:
        options_ = " and ".join(f"--{name}" for name in said)
        read.notes.append(Note("the line", f"no request: {options_} ask for different devices"))
        return None
    kinds = sorted({one.kind for one in gpus if not _PROFILE.fullmatch(one.kind)})
    if len(kinds) > 1:
        reason = f"no request: {' and '.join(map(shown, kinds))} are two kinds; make it several"
        read.note(gpus[0].option, reason)
        return None
    for one in gpus:
        _add_gpu(read, found, one, options)
    for one in gres:
        if one.name in ("shard", "mps") and one.count:
            found.shares += one.count
            if one.name == "mps" and options.shares is None:
                found.shares_of = _MPS_OF
                read.note(one.option, f"{_MPS_OF} units of mps are taken to be one device")
        elif one.name != "gpu":
            read.note(one.option, f"{shown(one.name)} is no device that is counted here")
    return found


def _add_gpu(read: _Line, found: Devices, one: _Gres, options: Options) -> None:
    match = _PROFILE.fullmatch(one.kind)
    model = one.kind
    if match is not None:
        profile = match[2] + (f"+{match[3]}" if match[3] else "")
        found.slices[profile] = found.slices.get(profile, 0) + one.count
        model = match[1] or ""
    else:
        found.whole += one.count
    if not model:
        return
    models = models_like(model, options.models)
    if models:
        read.note(one.option, f"the type {shown(model)} is taken to be {', '.join(models)}")
    else:
        read.note(one.option, f"the type {shown(model)} is no model known here; give its name")
    found.models = tuple(dict.fromkeys((*found.models, *(models or [model]))))


def _beside(read: _Line, tasks: int, devices: Devices | None) -> Beside:
    per_task, per_gpu = read.whole("cpus-per-task"), read.whole("cpus-per-gpu")
    gpus = 0 if devices is None else devices.whole + sum(devices.slices.values())
    cpus = tasks * (per_task or 1) if per_task or tasks > 1 else 0
    if per_gpu is not None:
        cpus = max(cpus, per_gpu * gpus)
    memory = 0
    for option, times in (("mem", 1), ("mem-per-cpu", max(1, cpus)), ("mem-per-gpu", gpus)):
        text = read.take(option)
        mib = slurm_mib(text) if text is not None else 0
        if mib is None:
            raise NotTheFormat("must be a size such as 4000, 16G or 512M", f"--{option}")
        if text is not None and mib == 0:
            read.note(option, "0 is all memory of a node, which is not known here")
        memory = max(memory, mib * times)
    return Beside(cpus * _MILLI, memory)
