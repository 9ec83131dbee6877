package barrier_test

import "github.com/interlock-dev/interlock/internal/testbed/crash"

var roles = map[string]crash.Role{}
