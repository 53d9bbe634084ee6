"""A stranger: the README's commands alone, in a clean Debian, on a repository that has never heard of outerloop."""
