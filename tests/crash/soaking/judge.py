"""Compares the ends of jobs that actors were told of with the provider's ledger, which knows nothing of akter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from soaking.provider import ACTED, PAID, REFUSED, Call
from soaking.till import CAP, RETRY, ROUTES

KNOWN_CAUSES = REFUSED
"""Causes of dead letters by which the provider said that it had not acted."""


class Told(NamedTuple):
    """What an actor heard of an end."""

    job_id: str
    how: str
    attempts: int
    acted_in: int
    ambiguous: bool


class Letter(NamedTuple):
    """A dead letter as it is kept."""

    attempts: int
    cause: str
    ambiguous: bool


class Asked(NamedTuple):
    """A job that was committed, with all that is known of it."""

    till: str
    job_id: str
    ended: bool
    told: Sequence[Told]
    letter: Letter | None
    calls: Sequence[Call]


def judge(stored: Any, wrong: list[str], numbers: dict[str, Any]) -> None:
    """Every job ended in one way, which the calls bear out; nothing else did."""
    jobs = _jobs(stored)
    receipts = Counter(id for _, id, command, _ in stored.receipts if command in ROUTES)
    fates: Counter[str] = Counter()
    for job in jobs.values():
        goings = stored.gone.get(job.job_id.rsplit(":", 1)[-1], [])
        if not len(job.told) == receipts[job.job_id] <= 1:
            wrong.append(f"{job.job_id}: told {len(job.told)} times, with {receipts[job.job_id]} receipts")
        if len(goings) != 1:
            wrong.append(f"{job.job_id}: left the outbox {len(goings)} times")
        wrong += [f"{job.job_id}: {said}" for said in _faults(job, [going.attempts for going in goings], stored.killed)]
        fates[job.told[0].how if job.told else "cancelled before any attempt"] += 1
    strangers = {*stored.calls, *stored.letters, *receipts, *(told.job_id for told in _told(stored))} - set(jobs)
    wrong += [f"a job that nobody asked for: {one}" for one in strangers]
    most = max((most for most, _ in stored.leases), default=0)
    if most > CAP:
        wrong.append(f"{most} live leases of one till at once, and {CAP} are allowed")
    numbers["jobs enqueued"] = len(jobs)
    numbers |= {f"of these {how}": times for how, times in sorted(fates.items())}
    numbers["calls of the provider"] = sum(call.outcome == "began" for job in jobs.values() for call in job.calls)
    numbers["of these began and never answered"] = sum(_unanswered(job.calls) for job in jobs.values())
    numbers["jobs whose calls succeeded more than once"] = sum(_successes(job.calls) > 1 for job in jobs.values())
    numbers["ambiguous letters"] = sum(letter.ambiguous for letter in stored.letters.values())
    numbers["other letters"] = sum(not letter.ambiguous for letter in stored.letters.values())
    numbers["looks at live leases"] = len(stored.leases)
    numbers["most live leases of one till, of all"] = (most, max((both for _, both in stored.leases), default=0))


def _jobs(stored: Any) -> dict[str, Asked]:
    told: dict[str, list[Told]] = defaultdict(list)
    for one in _told(stored):
        told[one.job_id].append(one)
    found: dict[str, Asked] = {}
    for till, (value, _) in stored.states.items():
        for turn, id, key in value.get("asked", ()):
            ended = any(by > turn and over == key for by, over in value["over"])
            found[id] = Asked(till, id, ended, told[id], stored.letters.get(id), stored.calls.get(id, []))
    return found


def _told(stored: Any) -> list[Told]:
    return [Told(*one) for value, _ in stored.states.values() for one in value.get("told", ())]


def _faults(job: Asked, claims: Sequence[int], killed: frozenset[int]) -> list[str]:
    """What is wrong with one job."""
    begun = [call.attempt for call in job.calls if call.outcome == "began"]
    said: list[str] = []
    if len(set(begun)) != len(begun) or max(begun, default=0) > RETRY.attempts:
        said.append(f"its attempts were {begun}")
    if sum(call.outcome in ACTED for call in job.calls) > 1:
        said.append("the provider acted twice")
    if not job.told:
        if not job.ended or any(claims) or begun:
            said.append(f"nobody was told of its end, after {max(claims, default=0)} attempts and {len(begun)} calls")
        return said
    end = job.told[0]
    if end.attempts == 0 and end.how == "cancelled, failed" and job.ended and not begun:
        # It was claimed when it was cancelled, and given back before it began.
        return said
    if end.how.startswith("cancelled") and not job.ended:
        said.append("it was told as cancelled, and nobody did that")
    if end.how in ("success", "cancelled, succeeded"):
        said += _succeeded(job, end)
    else:
        said += _gave_up(job, end, killed)
    return said


def _succeeded(job: Asked, end: Told) -> list[str]:
    """A success is one that the provider gave, and says what it said."""
    answered = [call.attempt for call in job.calls if call.outcome in PAID]
    acted = [call.attempt for call in job.calls if call.outcome in ACTED]
    if end.how == "success" and (end.attempts not in answered or [end.acted_in] != acted):
        return [f"told as a success of attempt {end.attempts} and acted in {end.acted_in}; its calls were {job.calls}"]
    if not answered:
        return [f"told as a success, and its calls were {job.calls}"]
    return [f"succeeded, and has a letter: {job.letter}"] if end.how == "success" and job.letter else []


def _gave_up(job: Asked, end: Told, killed: frozenset[int]) -> list[str]:
    """A job that did not succeed is ambiguous where a call may have acted, and nowhere else."""
    said: list[str] = []
    letter = job.letter
    last = [place for place, call in enumerate(job.calls) if call.attempt == end.attempts and call.outcome in REFUSED]
    acted_before = any(call.outcome in ACTED for call in job.calls[: last[0]]) if last else False
    if not end.ambiguous and (not last or acted_before):
        said.append(f"told as {end.how} without doubt after attempt {end.attempts}; its calls were {job.calls}")
    if end.how == "dead letter":
        if letter is None or letter.attempts != end.attempts or end.ambiguous > letter.ambiguous:
            return [*said, f"told of {end}, and its letter is {letter}"]
        if end.ambiguous == (letter.cause in KNOWN_CAUSES):
            said.append(f"told of {end}, because of {letter.cause}")
        if letter.ambiguous and not end.ambiguous and not _successes(job.calls):
            said.append(f"its letter became ambiguous, and its calls were {job.calls}")
    elif letter is not None and not (letter.ambiguous and _successes(job.calls)):
        said.append(f"told of {end}, and has a letter: {letter}")
    # A success after the end is reported, unless its process was ended before it could be.
    late = [call for call in job.calls if call.outcome in PAID and call.pid not in killed]
    if late and not (letter and letter.ambiguous):
        said.append(f"{late} succeeded, and it was told of {end}; its letter is {letter}")
    return said


def _successes(calls: Sequence[Call]) -> int:
    return sum(call.outcome in PAID for call in calls)


def _unanswered(calls: Sequence[Call]) -> int:
    return sum(1 if call.outcome == "began" else -1 for call in calls)
