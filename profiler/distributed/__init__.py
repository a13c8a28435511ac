"""The processes of a profiling run: rendezvous, agreement and watchdog."""
