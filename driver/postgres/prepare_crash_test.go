package postgres_test

import "github.com/interlock-dev/interlock/internal/testbed/crash"

// roles are what processes of this package's own do that crash.
var roles = map[string]crash.Role{}
