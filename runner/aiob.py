"""The verb ``aiob``: times the submodules of a model (workload.aicb.module_cases) on this device, as AICB's text and as
samples of a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profdb.cases import Case
from profdb.commands.import_measurements import import_lines
from profdb.on_demand import MeasuringDevice
from profdb.sample import ProfileDatabase, Sample
from spec.units import US
from workload.aicb.aiob import AiobFile, ModuleTime, write_aiob
from workload.aicb.module_cases import ModuleCases, ModuleRun, SectionCases, module_cases
from workload.diagnostics import WorkloadError

DROPPED_ABOVE = 3.0
"""AICB drops trials that took longer than this many times the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTimes:
    """The sample of each case; a sample of status oom or failed has no time."""

    cases: ModuleCases
    samples: Mapping[Case, Sample]

    @property
    def left_out(self) -> list[str]:
        """A line for each section that could not be measured, with the reason."""
        lines = []
        for kind, sections in (("", self.cases.usual), *self.cases.others.items()):
            for name, cases in sections.items():
                bad = next((self.samples[case] for case in cases if not self.samples[case].trials_s), None)
                if bad is not None:
                    where = f"{name} of {kind}" if kind else name
                    lines.append(f"not measured: {where}: {bad.launched.get('reason', bad.status)}")
        return lines

    def times(self, sections: SectionCases) -> dict[str, ModuleTime]:
        """Microseconds of each section of which all cases were measured."""
        return {
            name: sum_of([aiob_time(self.samples[case].trials_s) for case in cases])
            for name, cases in sections.items()
            if all(self.samples[case].trials_s for case in cases)
        }

    def file(self) -> AiobFile:
        """The file of the most common kind of layer. Raises WorkloadError when nothing was measured."""
        times = self.times(self.cases.usual)
        if not times:
            raise WorkloadError(f"no submodule could be measured: {'; '.join(self.left_out)}")
        most = max(len(one.trials_s) for one in self.samples.values())
        return AiobFile(train_iter=most, sections=times)


def aiob_time(trials_s: tuple[float, ...]) -> ModuleTime:
    """Maximum, minimum and mean of the trials that AICB keeps, in microseconds."""
    shortest_s = min(trials_s)
    trials = [trial / US for trial in trials_s if trial <= DROPPED_ABOVE * shortest_s]
    mean = sum(trials) / len(trials)
    return ModuleTime(max_us=max(trials), min_us=min(trials), avg_us=min(max(mean, min(trials)), max(trials)))


def sum_of(times: Sequence[ModuleTime]) -> ModuleTime:
    """The time of cases that run one after another."""
    return ModuleTime(
        max_us=sum(one.max_us for one in times),
        min_us=sum(one.min_us for one in times),
        avg_us=sum(one.avg_us for one in times),
    )


def time_modules(run: ModuleRun, device: MeasuringDevice) -> ModuleTimes:
    """The times of every section; equal cases (the norms) are measured once. Raises ConfigError as module_cases."""
    cases = module_cases(run)
    every_case = (
        case for sections in (cases.usual, *cases.others.values()) for section in sections.values() for case in section
    )
    return ModuleTimes(cases=cases, samples={case: device.measure(case) for case in dict.fromkeys(every_case)})


def write_times(timed: ModuleTimes, device: MeasuringDevice, output: Path, into: Path | None) -> list[str]:
    """Lines on what was written: AICB's text, and the samples merged into a profile.

    Raises WorkloadError when nothing was measured, ProfileError for a profile of another GPU.
    """
    file = timed.file()
    write_aiob(output, file)
    lines = section_lines(file.sections)
    for kind, sections in timed.cases.others.items():
        lines += [f"{kind} is another kind of layer (not in {output}):", *section_lines(timed.times(sections))]
    lines += [*timed.left_out, f"wrote {output}"]
    if into is not None:
        measured = [one for one in timed.samples.values() if one.trials_s]
        lines += import_lines(into, ProfileDatabase(machine=device.machine, samples=measured))
    return lines


def section_lines(sections: Mapping[str, ModuleTime]) -> list[str]:
    """One line for each section."""
    return [f"{name:26}{time.avg_us:12.1f} us" for name, time in sections.items()]
