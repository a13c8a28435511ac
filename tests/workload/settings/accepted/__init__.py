"""What frameworks accept and require, one list a version, and the readers of those lists."""
