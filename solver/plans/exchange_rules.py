"""What settings of the experts' exchange must have between them, told before anything is priced."""

from spec.errors import ConfigError
from spec.job import JobSpec


def check_exchange(job: JobSpec) -> None:
    """Raise ConfigError for weight gradients put off where no exchange runs beside another micro-batch (Megatron-LM
    ``transformer_config.py``, __post_init__)."""
    if job.delay_wgrad and not job.overlap_expert_a2a:
        raise ConfigError(
            where="--job", key="delay_wgrad", value=True, allowed="true only beside overlap_expert_a2a true"
        )
