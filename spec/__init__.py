"""What things are: models, clusters, jobs, units and errors. Standard library and numpy only."""
