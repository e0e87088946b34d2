"""A stand-in for mpi4py between the PEs of one host, as far as tests need it: see MPI."""
