"""accelerate: make an unmodified MPI program faster by its library's own knobs, or say that nothing is to be gained."""
