"""Ready LightningModules; a LightningModule of your own needs nothing from here."""

from lightning_gnncomm.models.node_classifier import NodeClassifier

__all__ = ["NodeClassifier"]
