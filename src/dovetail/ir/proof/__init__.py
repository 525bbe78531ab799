"""proof: the certificate: each check of a Program, its reference, and the door to its C++ twin."""
