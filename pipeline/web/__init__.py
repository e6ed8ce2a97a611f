"""What pages and servers share: who may ask, limits, bodies, and how browsers sign in."""
