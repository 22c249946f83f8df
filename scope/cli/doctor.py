"""`scope doctor`: what is wrong with this node, or differs between the ranks of a run."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from scope.cli.options import FILE
from scope.errors import InputError, RunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scope.analysis.doctor.diagnosis import Diagnosis
    from scope.analysis.recorded import Watched
    from scope.probe.facts import NodeFacts
    from scope.run.reader import RankReader
    from scope.run.schema import RankInfo, RunInfo, StepLine, StepRecord

_MARKS: Final = {"critical": "CRITICAL", "warning": "warning ", "info": "info    "}
_FACTS_SUFFIX: Final = ".facts.json"
_MOST_OF_A_CHECK: Final = 10
_MOST_VALUES: Final = 8


@click.command()
@click.argument(
    "target",
    type=FILE,
    required=False,
    help="Run directory of a job, or a folder of facts of its nodes; this node without it.",
)
@click.option(
    "--preflight",
    is_flag=True,
    help="Kept for scripts that name it; `scope doctor` does the same without it.",
)
@click.option("--run-dir", type=FILE, help="Where runs will be written: test that it can be, and how fast.")
@click.option("--gpus", "num_gpus", type=int, help="How many GPUs this node should have.")
@click.option("--facts", type=FILE, help="Also write this node's facts into this shared folder, to compare nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--nvml-library", help="NVML library to load instead of the system's.")
def doctor(
    target: Path | None,
    *,
    preflight: bool,
    run_dir: Path | None,
    num_gpus: int | None,
    facts: Path | None,
    as_json: bool,
    nvml_library: str | None,
) -> None:
    """Say what is wrong with this node, or what differs between the ranks of a run, and what to do.

    The exit code is 1 when something critical is found.

    Example: srun --ntasks-per-node=1 scope doctor --facts /shared/facts
    """
    del preflight  # kept for scripts that name it
    if target is None:
        found, seen = _check_this_node(run_dir, num_gpus, facts, nvml_library)
    else:
        if facts is not None or run_dir is not None or num_gpus is not None:
            message = "--facts, --run-dir and --gpus speak of this node; leave the folder out"
            raise UsageError(message)
        found, seen = _check_folder(target)
    print_diagnoses(found, seen, as_json=as_json)
    if target is not None and not as_json and _is_run(target):
        from scope.report.inert import readable_problem

        what = "Settings, clocks and how ranks ended were checked"
        print(f"{what}; how fast each works: scope show {readable_problem(str(target))}")
    if any(one.severity == "critical" for one in found):
        raise click.exceptions.Exit(1)


def _check_this_node(
    run_dir: Path | None, num_gpus: int | None, facts: Path | None, nvml_library: str | None
) -> tuple[list[Diagnosis], str]:
    from scope.analysis.doctor.node import check_node
    from scope.probe.facts import read_node_facts

    node = read_node_facts(run_folder=run_dir, nvml_library=nvml_library)
    if facts is not None:
        _write_facts(facts, node)
    seen = f"{node.host}: {len(node.gpus)} GPUs, {len(node.rdma)} RDMA ports, {len(node.nets)} interfaces"
    return check_node(node, num_gpus=num_gpus), seen


def _write_facts(folder: Path, node: NodeFacts) -> None:
    import msgspec

    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{node.host}.new"
        fresh.write_bytes(msgspec.json.encode(node))
        fresh.replace(folder / f"{node.host}{_FACTS_SUFFIX}")
    except OSError as error:
        message = f"cannot write facts to {folder}: {error}"
        raise InputError(message) from error


def _check_folder(target: Path) -> tuple[list[Diagnosis], str]:
    if not target.is_dir():
        message = f"{target} is no folder; name a run directory or a folder of facts"
        raise InputError(message)
    if _is_run(target):
        return _check_run(target)
    return _check_facts(target)


def _is_run(target: Path) -> bool:
    from scope.run import paths

    return (target / paths.RUN_FILE).exists()


def _check_facts(folder: Path) -> tuple[list[Diagnosis], str]:
    import msgspec

    from scope.analysis.doctor.compare import compare_nodes
    from scope.analysis.doctor.diagnosis import sort_diagnoses
    from scope.analysis.doctor.node import check_node
    from scope.probe.facts import NodeFacts
    from scope.run.files import read_document

    nodes: list[NodeFacts] = []
    for path in sorted(folder.glob(f"*{_FACTS_SUFFIX}")):
        try:
            nodes.append(msgspec.json.decode(read_document(path), type=NodeFacts))
        except (msgspec.MsgspecError, RecursionError) as error:
            message = f"{path} is torn or foreign: {error}"
            raise InputError(message) from error
    if not nodes:
        message = f"{folder} is no run directory and holds no facts; scope doctor --facts {folder} writes them"
        raise InputError(message)
    found = [*compare_nodes(nodes), *(diagnosis for node in nodes for diagnosis in check_node(node))]
    return sort_diagnoses(found), f"{len(nodes)} nodes"


def _check_run(run: Path) -> tuple[list[Diagnosis], str]:
    from scope.analysis.doctor.compare import compare_clocks, compare_ranks
    from scope.analysis.doctor.diagnosis import SEVERITIES, Diagnosis, sort_diagnoses
    from scope.report.standing import count
    from scope.run.losses import find_losses
    from scope.run.reader import RunReader
    from scope.run.schema import StepRecord
    from scope.run.unpublished import find_unpublished

    reader = RunReader(run)
    info = reader.info()
    infos: list[RankInfo] = []
    problems: list[tuple[str, str]] = []
    steps: dict[int, list[StepRecord]] = {}
    hosts: dict[int, str] = {}
    found: list[Diagnosis] = []
    for rank in reader.ranks():
        try:
            own = rank.info()
            infos.append(own)
            hosts[own.rank] = own.host
            lines = rank.new_steps()
            steps[own.rank] = [step for step in lines if isinstance(step, StepRecord)]
            found += _check_losses(rank, lines)
            problems += [(loss, rank.folder.name) for loss in find_losses(rank.folder, own) or []]
        except RunError as error:
            problems.append((str(error), rank.folder.name))
        problems += [(problem, rank.folder.name) for problem in rank.take_problems()]
    problems += [(problem, run.name) for problem in (*reader.take_problems(), *find_unpublished(run))]
    unreadable = [
        Diagnosis(
            check="record", severity="warning", what=what, where=where,
            action="what could not be read, or was left out, is missing from all figures; the rest is in them",
        )
        for what, where in problems
    ]  # fmt: skip
    found += [
        *_check_begun(info, is_empty=not infos and not problems),
        *compare_ranks(infos, world_size=info.world_size),
        *compare_clocks(steps, hosts),
        *unreadable,
    ]
    # What ended or holds up the run comes before what differs, its cause first.
    found = sorted([*_judge(run), *sort_diagnoses(found)], key=lambda one: SEVERITIES.index(one.severity))
    where = f"{count(len(infos), 'rank')} on {count(len(set(hosts.values())), 'host')}"
    return found, f"run {info.run_id}: {where}"


def _check_begun(info: RunInfo, *, is_empty: bool) -> list[Diagnosis]:
    """Return that a run has no rank, and why where its command has ended."""
    from scope.analysis.doctor.diagnosis import Diagnosis

    if not is_empty:
        return []
    what, action = "no rank has begun to record yet", "look again once the training script has started"
    if info.unrecorded is not None:
        what, action = f"nothing was recorded: {info.unrecorded}", "the README names what Scope cannot see"
    return [Diagnosis(check="record", severity="warning", what=what, where=f"run {info.run_id}", action=action)]


def _check_losses(rank: RankReader, lines: Sequence[StepLine]) -> list[Diagnosis]:
    """Return that records of a rank were dropped, as its black box knows or, where that is more, its steps do."""
    from scope.analysis.doctor.diagnosis import Diagnosis
    from scope.report.standing import count

    box = rank.state()
    dropped = max(box.num_dropped if box is not None else 0, sum(line.num_dropped for line in lines))
    if not dropped:
        return []
    return [
        Diagnosis(
            check="record", severity="warning", what=f"{count(dropped, 'record')} dropped (full disk or queue)",
            where=rank.folder.name, action="make room for the spool; all figures are of the rest",
        )
    ]  # fmt: skip


def _judge(run: Path) -> list[Diagnosis]:
    """Return what all ranks together tell, as `scope watch` finds it, and what it has written down."""
    from scope.analysis.doctor.diagnosis import Diagnosis, describe_ranks
    from scope.frames import open_run
    from scope.report.watching import find_findings, look_at_run
    from scope.run.verdicts import STANDSTILLS

    opened = open_run(run)
    watched = look_at_run(opened)
    found = [
        Diagnosis(
            check=verdict.kind, severity=verdict.severity, what=verdict.summary,
            where=describe_ranks(list(verdict.ranks)) if verdict.ranks else "all ranks",
            action=verdict.action or "see the Post-mortem page of the dashboard",
        )
        for verdict in find_findings(opened, watched)
    ]  # fmt: skip
    is_told = any(one.check in STANDSTILLS for one in found)
    return found if is_told else [*found, *_find_hang_before_end(run, watched)]


def _find_hang_before_end(run: Path, watched: Watched) -> list[Diagnosis]:
    """Return that a run which was ended from outside, and so needs no finding any more, hung by then."""
    from scope.analysis.doctor.diagnosis import Diagnosis, describe_ranks
    from scope.report.standing import age, missed_words

    state = watched.state
    if not state.missed or state.still_ns is None:
        return []
    who = missed_words(state.missed, ended=True)
    return [
        Diagnosis(
            check="hang", severity="critical",
            what=f"{state.outcome} when no step had ended for {age(state.still_ns)}: {who}",
            where=describe_ranks(sorted({missed.rank for missed in state.missed})),
            action=f"look where each rank stood: scope show {run}, or the Post-mortem page of the dashboard",
        )
    ]  # fmt: skip


def print_diagnoses(found: list[Diagnosis], seen: str, *, as_json: bool) -> None:
    """Print what was found: for people shortly, equal findings as one; as JSON all of it, one by one."""
    if as_json:
        import msgspec

        from scope.report.encoding import encode_json

        sys.stdout.write(encode_json({"checked": seen, "findings": msgspec.to_builtins(found)}))
        return
    from scope.report.inert import readable_problem

    print(f"Checked {readable_problem(seen)}.")
    if not found:
        print("Nothing is wrong or differs.")
    from scope.analysis.doctor.diagnosis import merge_equal

    shown: Counter[str] = Counter()
    merged = merge_equal(found)
    for one in merged:
        shown[one.check] += 1
        if shown[one.check] <= _MOST_OF_A_CHECK:
            _print_one(one)
    for check, number in shown.items():
        if number > _MOST_OF_A_CHECK:
            print(f"and {number - _MOST_OF_A_CHECK:,} more of [{readable_problem(check)}]; --json has all")


def _print_one(one: Diagnosis) -> None:
    from scope.report.inert import readable_problem

    print(f"{_MARKS[one.severity]} {readable_problem(one.what)}  [{readable_problem(one.check)}]")
    print(f"         where: {readable_problem(one.where)}")
    for owner, value in [*one.values.items()][:_MOST_VALUES]:
        print(f"           {readable_problem(owner)}: {readable_problem(value)}")
    if len(one.values) > _MOST_VALUES:
        print(f"           and {len(one.values) - _MOST_VALUES:,} more values; --json has all")
    print(f"         do: {readable_problem(one.action)}")
