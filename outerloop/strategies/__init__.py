"""PURE. StrategyPlan to LaunchSpec compilers."""
