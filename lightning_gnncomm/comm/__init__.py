"""Communication between ranks: wires, channels, schedules and what they count."""
