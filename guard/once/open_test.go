package once_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestOpen: an inbox opened by URL has its tables and sweeps them; a repeated message
// is a duplicate.
func TestOpen(t *testing.T) {
	for _, rotated := range []bool{false, true} {
		databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
			c, err := once.Open(t.Context(), open(t).URL, once.Inbox{Consumer: "billing", Rotated: rotated})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []once.Outcome{once.Done, once.Duplicate} {
				got, err := c.Receive(t.Context(), once.Message{ID: "1"}, func(context.Context, interlock.SQL) error { return nil })
				if got != want || err != nil {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}, databases.Pgx)
	}
	if _, err := once.Open(t.Context(), "memory://inbox", once.Inbox{Consumer: "billing"}); !errors.As(err, new(*backend.URLError)) {
		t.Errorf("a system without tables: %v", err)
	}
}
