package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
)

// TestLastWords: what a server or a pooler says as it gives up tells nothing of the
// COMMIT, unless it can only have come before. transaction_timeout, which PostgreSQL has
// from version 17 on, is one of those that may come after.
func TestLastWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		severity, state string
		want            interlock.ErrorKind
	}{
		{"FATAL", "25P03", interlock.Retryable},
		{"FATAL", "25P04", interlock.Uncertain},
		{"FATAL", "57P01", interlock.Uncertain},
		{"FATAL", "42501", interlock.Uncertain},
		{"PANIC", "22012", interlock.Uncertain},
		{"ERROR", "42501", interlock.Definite},
		{"", "42501", interlock.Definite},
	} {
		err := &pgconn.PgError{Severity: "in the server's language", SeverityUnlocalized: tt.severity, Code: tt.state}
		for _, at := range []stage{inCommit, inRollback} {
			if got := kindOf(at, err, false); got != tt.want {
				t.Errorf("%s %s at %v: %v, want %v", tt.severity, tt.state, at, got, tt.want)
			}
		}
		if got := kindOf(inAbandoned, err, false); got == interlock.Uncertain {
			t.Errorf("%s %s where COMMIT will not be sent: %v", tt.severity, tt.state, got)
		}
	}
}
