"""proof: the certificate and its checks, each as a Python reference, and the call of their C++ implementation."""
