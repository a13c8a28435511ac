"""AICB's offer: workloads it generates, general (CSV) workloads, AIOB compute times."""
