"""The version of the package, written into every manifest."""

VERSION = "0.1.0"
