"""The model registry: registered versions, promotion to champion through gates, rollback, history.

`promotion` decides; `promotion_gates` holds the gates, among them the paired test against the
champion.
"""
