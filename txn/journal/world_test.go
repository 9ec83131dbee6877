package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"driver": drive}) }

// The helpers that the tests of txn share.
var (
	ok, wantKind  = txntest.OK, txntest.WantKind
	bubble, grant = virtual.Test, txntest.Grant
	runBubble     = txntest.RunBubble
	token, repeat = txntest.Token, txntest.Repeat
)

// open returns a journal on a store, closed after the test.
func open(t *testing.T, store driver.Journal, o *journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.New(store, o)
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	return j
}

// eachTable runs a test on a new table in each database, see [databases.Each].
func eachTable(t *testing.T, test func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]), clients ...string) {
	t.Helper()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		test(t, db, table)
	}, clients...)
}

// due is an arbitrary time.
var due = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func says(kinds ...string) []journal.Entry {
	var all []journal.Entry
	for _, k := range kinds {
		all = append(all, journal.Entry{Kind: k, Data: []byte(k)})
	}
	return all
}

func kinds(entries []journal.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Kind)
	}
	return all
}

// slow is a store whose appends wait for a gate, and may lose their answers.
type slow struct {
	*memory.Journal

	mu     sync.Mutex
	groups []int         // sizes of the requests
	gate   chan struct{} // nil is open
	lose   int           // answers that are lost from now on
	refuse int           // requests that are refused from now on, Retryable
}

func newSlow() *slow { return &slow{Journal: memory.NewJournal()} }

func (s *slow) Append(ctx context.Context, appends []driver.Append) []error {
	s.mu.Lock()
	s.groups = append(s.groups, len(appends))
	gate, lose, refuse := s.gate, s.lose > 0, s.refuse > 0
	s.lose, s.refuse = s.lose-1, s.refuse-1
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	if refuse {
		return repeat(len(appends), &interlock.Error{Op: "append", Kind: interlock.Retryable, Err: errors.New("not now")})
	}
	errs := s.Journal.Append(ctx, appends)
	if lose {
		return repeat(len(appends), &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: errors.New("no answer")})
	}
	return errs
}
