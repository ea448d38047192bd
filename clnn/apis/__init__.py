"""Other systems in their own terms: thin faces over graphs and sessions."""
