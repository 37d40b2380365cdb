"""The Reactive Agent Protocol: what its servers offer, and the messages that they send. Pure, without I/O."""
