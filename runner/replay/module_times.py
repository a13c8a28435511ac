"""Each submodule of a model timed on one device, as AICB's AIOB does: its text, and samples of a profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profdb.cases import Case, OptimizerCase
from profdb.commands.import_export import import_lines
from profdb.importers.aiob import AiobRun, module_cases
from profdb.on_demand import MeasuringDevice
from profdb.sample import ProfileDatabase, Sample
from spec.parameters import num_parameters
from spec.units import US
from workload.aicb.aiob.text import AiobFile, AiobTime, write_aiob
from workload.workload_error import WorkloadError

DROPPED_ABOVE = 3.0
"""AICB leaves out what took longer than so many times the shortest."""

PARAMETERS = "param_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Sections of AICB's file with their samples; those of status oom or failed have no time."""

    samples: Mapping[str, Sample]

    @property
    def left_out(self) -> list[str]:
        """Sections that could not be measured, with the reason."""
        return [
            f"not measured: {name}: {one.launched.get('reason', one.status)}"
            for name, one in self.samples.items()
            if not one.trials_s
        ]

    def file(self) -> AiobFile:
        """Microseconds by section. Raises WorkloadError when nothing was measured."""
        times = {name: aiob_time(one.trials_s) for name, one in self.samples.items() if one.trials_s}
        if not times:
            raise WorkloadError(f"no submodule could be measured: {'; '.join(self.left_out)}")
        most = max(len(one.trials_s) for one in self.samples.values())
        return AiobFile(train_iter=most, sections=times)


def cases_of(run: AiobRun) -> dict[str, Case]:
    """The case of each section: forward passes of the submodules, and one optimizer step over a rank's parameters.

    Raises ConfigError for degrees that do not fit the model, or a model that AIOB's sections have no words for.
    """
    elements = -(-num_parameters(run.model).total // run.tp)
    return {**module_cases(run), PARAMETERS: OptimizerCase(elements=elements)}


def aiob_time(trials_s: tuple[float, ...]) -> AiobTime:
    """Largest, smallest and mean of the trials that AICB would keep; microseconds."""
    least = min(trials_s)
    kept = [trial / US for trial in trials_s if trial <= DROPPED_ABOVE * least]
    mean = sum(kept) / len(kept)
    return AiobTime(max_us=max(kept), min_us=min(kept), avg_us=min(max(mean, min(kept)), max(kept)))


def time_modules(run: AiobRun, device: MeasuringDevice) -> Timed:
    """Measure every section; equal cases (the norms) once."""
    cases = cases_of(run)
    found = {case: device.measure(case) for case in dict.fromkeys(cases.values())}
    return Timed(samples={name: found[case] for name, case in cases.items()})


def write_times(timed: Timed, device: MeasuringDevice, output: Path, into: Path | None) -> list[str]:
    """Write AICB's text, and merge the samples into a profile; what was done, in lines.

    Raises WorkloadError when nothing was measured, ProfileError for a profile of another GPU.
    """
    file = timed.file()
    write_aiob(output, file)
    lines = [f"{name:16} {time.avg_us:12.1f} us" for name, time in file.sections.items()]
    lines += [*timed.left_out, f"wrote {output}"]
    if into is not None:
        measured = {id(one): one for one in timed.samples.values() if one.trials_s}
        lines += import_lines(into, ProfileDatabase(machine=device.machine, samples=list(measured.values())))
    return lines
