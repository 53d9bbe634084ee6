"""The stranger's repository has tests of its own; they are not ours."""

collect_ignore = ["repository"]
