"""Long-running processes: started, checked, restarted, and ended together with their supervisor."""
