"""Human approval of a promotion: what the approver sees and answers; `patchline.flows.approval` asks."""
