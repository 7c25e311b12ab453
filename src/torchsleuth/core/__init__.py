"""What every process knows: cases, processes, messages. No torch."""
