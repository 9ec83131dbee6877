package branch

import "github.com/interlock-dev/interlock/internal/failure"

// Redact is an address as it may be shown in errors, logs and lists: without its user
// information, query and fragment, which can have secrets in them.
func Redact(address string) string { return failure.RedactURL(address) }
