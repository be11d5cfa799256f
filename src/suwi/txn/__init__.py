"""Producer ids; transactions will be added here."""
