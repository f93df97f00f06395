"""Real processes, broken on purpose: nothing may be lost, nothing paid twice."""
