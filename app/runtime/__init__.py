"""What a process runs: lanes (group commit), desks (waiting claims), loops (sweeps). No HTTP, no SQL, no decisions."""
