"""What must hold: cases, laws, and the engine that runs a law on a kernel."""
