"""Models that read texts alone: encoders, regressions, language models, a parser, a language identifier."""
