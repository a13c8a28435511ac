"""The submodules of a model timed on one device: AICB's text, and samples of a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profdb.cases import Case
from profdb.commands.import_export import import_lines
from profdb.on_demand import MeasuringDevice
from profdb.sample import ProfileDatabase, Sample
from runner.aiob.module_cases import ModuleCases, ModuleRun, SectionCases, module_cases
from spec.units import US
from workload.aicb.aiob import AiobFile, AiobTime, write_aiob
from workload.findings import WorkloadError

DROPPED_ABOVE = 3.0
"""AICB leaves out what took longer than so many times the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The samples of each case; those of status oom or failed have no time."""

    cases: ModuleCases
    samples: Mapping[Case, Sample]

    @property
    def left_out(self) -> list[str]:
        """Sections that could not be measured, with the reason."""
        lines = []
        for kind, sections in (("", self.cases.usual), *self.cases.others.items()):
            for name, cases in sections.items():
                bad = next((self.samples[case] for case in cases if not self.samples[case].trials_s), None)
                if bad is not None:
                    where = f"{name} of {kind}" if kind else name
                    lines.append(f"not measured: {where}: {bad.launched.get('reason', bad.status)}")
        return lines

    def times(self, sections: SectionCases) -> dict[str, AiobTime]:
        """Microseconds of the sections all of whose cases were measured."""
        return {
            name: sum_of([aiob_time(self.samples[case].trials_s) for case in cases])
            for name, cases in sections.items()
            if all(self.samples[case].trials_s for case in cases)
        }

    def file(self) -> AiobFile:
        """Of the kind of layer that there is most of. Raises WorkloadError when nothing was measured."""
        times = self.times(self.cases.usual)
        if not times:
            raise WorkloadError(f"no submodule could be measured: {'; '.join(self.left_out)}")
        most = max(len(one.trials_s) for one in self.samples.values())
        return AiobFile(train_iter=most, sections=times)


def aiob_time(trials_s: tuple[float, ...]) -> AiobTime:
    """Largest, smallest and mean of the trials that AICB would keep; microseconds."""
    least = min(trials_s)
    kept = [trial / US for trial in trials_s if trial <= DROPPED_ABOVE * least]
    mean = sum(kept) / len(kept)
    return AiobTime(max_us=max(kept), min_us=min(kept), avg_us=min(max(mean, min(kept)), max(kept)))


def sum_of(times: Sequence[AiobTime]) -> AiobTime:
    """Of cases that run one after another."""
    return AiobTime(
        max_us=sum(one.max_us for one in times),
        min_us=sum(one.min_us for one in times),
        avg_us=sum(one.avg_us for one in times),
    )


def time_modules(run: ModuleRun, device: MeasuringDevice) -> Timed:
    """Measure every section; equal cases (the norms) once. Raises ConfigError as module_cases."""
    cases = module_cases(run)
    asked = (
        case
        for sections in (cases.usual, *cases.others.values())
        for section in sections.values()
        for case in section
    )
    return Timed(cases=cases, samples={case: device.measure(case) for case in dict.fromkeys(asked)})


def write_times(timed: Timed, device: MeasuringDevice, output: Path, into: Path | None) -> list[str]:
    """Write AICB's text, and merge the samples into a profile; what was done, in lines.

    Raises WorkloadError when nothing was measured, ProfileError for a profile of another GPU.
    """
    file = timed.file()
    write_aiob(output, file)
    lines = section_lines(file.sections)
    for kind, sections in timed.cases.others.items():
        lines += [
            f"{kind} is another kind of layer (not in {output}):",
            *section_lines(timed.times(sections)),
        ]
    lines += [*timed.left_out, f"wrote {output}"]
    if into is not None:
        measured = [one for one in timed.samples.values() if one.trials_s]
        lines += import_lines(into, ProfileDatabase(machine=device.machine, samples=measured))
    return lines


def section_lines(sections: Mapping[str, AiobTime]) -> list[str]:
    """A line a section."""
    return [f"{name:26}{time.avg_us:12.1f} us" for name, time in sections.items()]
