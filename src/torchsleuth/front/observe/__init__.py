"""What an observed run shows, from the events that its processes wrote: pure, without torch."""
