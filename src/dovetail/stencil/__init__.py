"""stencil"""
