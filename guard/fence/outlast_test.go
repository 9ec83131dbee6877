package fence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestOutlasting tests work that takes longer than the time left of its claim at
// the beginning.
func TestOutlasting(t *testing.T) {
	eachWorld(t, func(t *testing.T, open func(*testing.T) world) {
		for what, test := range map[string]func(*testing.T, world){
			"a renewed claim waits to enter":       testRenewedClaimWaits,
			"a silent network ends with the claim": testSilentCommit,
			"a silent network ends while it lasts": testSilentCommitUnderRenewedClaim,
			"entering ends on a silent network":    testSilentEnter,
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				test(t, open(t))
			})
		}
	})
}

// testRenewedClaimWaits lets a renewed claim wait for a resource for longer than it
// had left: it is still valid, and may retry.
func testRenewedClaimWaits(t *testing.T, w world) {
	first := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), first, "alice", token(1), "first"))
	c := grant(2, time.Second)
	waited := testbed.Later(t, bound, func() error { return w.tx(t.Context(), w.table, c, "alice", nothing) })
	w.blocked(t, 1)
	c.Renew(time.Minute)
	wantKind(t, waited(), interlock.Retryable, nil)
	ok(t, first.Rollback(t.Context()))
	ok(t, w.tx(t.Context(), w.table, c, "alice", nothing))
}

// commit runs a transaction through proxy whose COMMIT is done, but not answered.
func (w world) commit(t *testing.T, c *claim) (result func() error) {
	t.Helper()
	behind, proxy := w.behindProxy(t)
	t.Cleanup(proxy.Heal) // so that the client need not wait for the end of its connection
	result = testbed.Later(t, bound, func() error {
		return behind.tx(context.Background(), w.table, c, "alice", func(ctx context.Context, db driver.SQL) error {
			_, err := db.Exec(ctx, `update account set balance = 7 where id = 'alice'`)
			proxy.DropReplies()
			return err
		})
	})
	testbed.Eventually(t, "the commit is done", bound, func() bool {
		return w.text(t, `select concat(balance) from account where id = 'alice'`) == "7"
	})
	return result
}

func testSilentCommit(t *testing.T, w world) {
	c := grant(1, time.Minute)
	result := w.commit(t, c)
	c.End(interlock.ErrLost)
	wantKind(t, result(), interlock.Uncertain, interlock.ErrLost)
}

// testSilentCommitUnderRenewedClaim: with a claim that never ends, the wait for a COMMIT
// is bounded by the time that the claim had left when it was sent.
func testSilentCommitUnderRenewedClaim(t *testing.T, w world) {
	c := grant(1, 2*time.Second)
	result := w.commit(t, c)
	c.Renew(time.Hour)
	err := result()
	if wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded); errors.Is(err, interlock.ErrExpired) {
		t.Errorf("%v: the claim is still valid", err)
	}
}

// renewing begins transactions, and renews the claim before.
type renewing struct {
	driver.BeginnerAt[driver.SQL]
	c *claim
}

func (r renewing) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	r.c.Renew(time.Hour)
	return r.BeginnerAt.Begin(ctx)
}

// testSilentEnter: while a claim is renewed on another connection, BEGIN and Enter wait on one that is
// silent for no longer than about the time that the claim had left.
func testSilentEnter(t *testing.T, w world) {
	behind, proxy := w.behindProxy(t)
	t.Cleanup(proxy.Heal)
	ok(t, behind.tx(t.Context(), w.table, grant(1, bound), "alice", nothing))
	proxy.DropReplies()
	c := grant(2, time.Second)
	behind.BeginnerAt = renewing{behind.BeginnerAt, c}
	waited := testbed.Later(t, bound, func() error { return behind.tx(context.Background(), w.table, c, "alice", nothing) })
	wantKind(t, waited(), interlock.Retryable, nil)
}
