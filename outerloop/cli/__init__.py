"""Click commands: parse, call one function, render. No decisions are taken here."""
