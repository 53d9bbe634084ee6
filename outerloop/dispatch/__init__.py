"""Evidence to attempt verdicts, intent to job: values, or park, or fail."""
