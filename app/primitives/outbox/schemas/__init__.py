"""Request and response models of the outbox."""
