"""A deployment on a throw-away cluster, with commands that can be killed or stopped at any named point."""
