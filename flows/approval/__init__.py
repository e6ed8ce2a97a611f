"""Human approval of a promotion: one Prefect flow run per request, suspended until the answer.

In order:

1. `approval_flow` opens a request: it deploys the flow and starts a flow run for a version.
2. The flow compares the version with the champion, shows the question and suspends.
3. `requests` holds the form, takes an answer, and stores it with the flow run.
4. The flow starts again from the top, finds the answer and carries it out.
5. `approval_flow` closes overdue requests and retries flow runs whose process was killed.

`requests` tells which requests are open, and what is known of each.

What the approver sees is in `patchline.pipeline.registry.approval_question`, the answer in
`approval_answer` beside it, and the decision itself in `patchline.pipeline.registry.promotion`.
"""
