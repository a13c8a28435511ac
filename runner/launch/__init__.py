"""Starting programs on many hosts: over ssh, under Slurm, on Kubernetes; and a look at the hosts before."""
