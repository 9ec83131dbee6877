package branch

import "github.com/interlock-dev/interlock/internal/failure"

// Redact returns an address as errors, logs and lists may show it: without its user
// information, query and fragment, which can contain secrets. It is for other modules,
// which cannot import the function behind it.
func Redact(address string) string { return failure.RedactURL(address) }
