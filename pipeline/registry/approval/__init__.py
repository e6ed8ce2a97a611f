"""Human approval of a promotion: what the approver sees and answers; `flows.approval` asks."""
