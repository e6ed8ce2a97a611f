"""What is told to others: events with stable names, and automations that send them on."""
