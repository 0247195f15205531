"""Add-ons: functions from an agent to an agent (HER, RND, GAIL)."""
