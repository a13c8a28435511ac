"""The processes of a profiling run: how they find, agree with and watch each other."""
