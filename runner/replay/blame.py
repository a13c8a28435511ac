"""For whom the ranks of a run that hangs wait: from each along what it waits for, to one that waits for nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.ranks.watch import Beat
from runner.groups.degrees import Degrees
from runner.groups.members import members
from runner.replay.program import Launch, Launches, Program
from workload.traffic.ranks import rank_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a rank is: the how-manieth pass, which part of its program that is (0: initialisation), how many
    communications of it have begun, and whether it computes since."""

    passes: int
    part: int
    begun: int
    computes: bool

    def text(self) -> str:
        """One word, for the beat of a rank."""
        return f"{self.passes}:{self.part}:{self.begun}:{int(self.computes)}"

    @staticmethod
    def read(text: str) -> "Place | None":
        """The place in a beat; None before the first pass."""
        if not text:
            return None
        passes, part, begun, computes = (int(word) for word in text.split(":"))
        return Place(passes=passes, part=part, begun=begun, computes=bool(computes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The stages' programs, which all ranks know."""

    programs: Sequence[Program]
    degrees: Degrees

    def behind(self, beats: Mapping[int, Beat]) -> Sequence[int]:
        """Of living ranks those for which others wait; all where nobody is to blame."""
        places = {rank: Place.read(beat.place) for rank, beat in beats.items()}
        ends = [self._end(rank, places) for rank in beats]
        blamed = sorted({end for rank, end in zip(beats, ends, strict=True) if end != rank})
        return blamed or list(beats)

    def _end(self, rank: int, places: Mapping[int, Place | None]) -> int:
        """Where the chain of waiting that begins at ``rank`` ends."""
        seen: set[int] = set()
        while rank not in seen:
            seen.add(rank)
            waits = [other for other in self._waits_for(rank, places) if other in places]
            if not waits:
                break
            rank = waits[0]
        return rank

    def _waits_for(self, rank: int, places: Mapping[int, Place | None]) -> list[int]:
        here = places[rank]
        if here is None or here.computes or not here.begun:
            return []
        mine = communications(self._part(self.degrees.stage_of(rank), here.part))
        launch = mine[here.begun - 1]
        if launch.item.comm_type == "isend":
            return []
        asked = _like(launch)
        turn = sum(_like(one) == asked for one in mine[: here.begun])
        return [
            other
            for other in self._partners(rank, launch)
            if not self._reached(other, places.get(other), here, (_answer(launch), turn))
        ]

    def _partners(self, rank: int, launch: Launch) -> Sequence[int]:
        if launch.channel is not None:
            group = next(one for one in rank_groups(self.degrees.dense, "pp") if rank in one)
            return (group[launch.peer],)
        assert launch.group is not None
        group = next(one for one in members(*launch.group, self.degrees) if rank in one)
        return [other for other in group if other != rank]

    def _reached(self, other: int, there: Place | None, here: Place, wanted: tuple[object, int]) -> bool:
        """Whether ``other`` has come to the ``turn``-th of its communications of a kind in this pass."""
        if there is None or there.passes != here.passes:
            return there is not None and there.passes > here.passes
        kind, turn = wanted
        own = communications(self._part(self.degrees.stage_of(other), here.part))
        return sum(_like(one) == kind for one in own[: there.begun]) >= turn

    def _part(self, stage: int, part: int) -> Launches:
        program = self.programs[stage]
        return program.iteration(part - 1) if part else program.init


def communications(launches: Sequence[Launch]) -> list[Launch]:
    """The collectives and messages among launches."""
    return [launch for launch in launches if launch.ranks]


def _like(launch: Launch) -> object:
    """What is counted in turn: collectives of a group, sends or receives of a channel with a peer."""
    if launch.channel is None:
        return launch.group
    return launch.item.comm_type, launch.channel


def _answer(launch: Launch) -> object:
    """What the other end runs."""
    return launch.group if launch.channel is None else ("isend", launch.channel)
