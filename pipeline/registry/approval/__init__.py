"""Human approval: what the approver sees and answers; `patchline.flows.approval` asks."""
