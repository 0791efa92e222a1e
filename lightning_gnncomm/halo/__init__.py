"""Halo exchange behind the layers of an unchanged PyG model."""
