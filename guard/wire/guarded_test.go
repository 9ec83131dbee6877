package wire_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// enter runs the work of a request under its guard.
type enter func(ctx context.Context, p *wire.Passage) error

// eachGuard runs test for a service on each database, and on Redis.
func eachGuard(t *testing.T, test func(t *testing.T, work enter)) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, fence.Table{}.Create)
		db.Exec(t, `create table account (id varchar(64) primary key, balance bigint not null)`, `insert into account values ('account/42', 0)`)
		test(t, func(ctx context.Context, p *wire.Passage) error {
			return fence.Tx(ctx, db, fence.Table{}, p, p.Name(), func(ctx context.Context, tx driver.SQL) error {
				_, err := tx.Exec(ctx, `update account set balance = balance + 1`)
				return err
			})
		})
	}, databases.Pgx, databases.MariaInlined)
	t.Run("redis", func(t *testing.T) {
		c, err := redis.Dial(testbed.Redis(t).URL())
		ok(t, err)
		defer c.Close()
		store := fence.NewStore(redis.NewFence(c))
		test(t, func(ctx context.Context, p *wire.Passage) error {
			return store.Enter(ctx, p, p.Name(), driver.Write{Key: "balance", Value: []byte(p.Token().String())})
		})
	})
}

// serve starts a service that answers with the guard's error.
func serve(t *testing.T, work enter, o *wire.Options) (url string) {
	t.Helper()
	return service(t, wire.Handler(account, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := wire.From(r.Context())
		if err := work(r.Context(), p); !wire.Refuse(w, err) && err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), o)) + "?id=42"
}

// TestAnAbsurdTokenBricksNothing: the service refuses an implausible token, or the guard if the
// service's clock is wrong, and accepts the next valid caller.
func TestAnAbsurdTokenBricksNothing(t *testing.T) {
	t.Parallel()
	eachGuard(t, func(t *testing.T, work enter) {
		by := client(t, &wire.Transport{})
		call := func(url string, n interlock.Token) (int, error) {
			status, _, err := post(wire.Under(t.Context(), grant("account/42", n, bound), ""), by, url)
			return status, err
		}
		right := serve(t, work, nil)
		wrong := serve(t, work, wire.Options{}.At(func() time.Time { return time.Now().Add(50 * 365 * 24 * time.Hour) }))
		for i, absurd := range []interlock.Token{math.MaxInt64, ahead(interlock.MaxAhead + time.Hour), ahead(10 * 365 * 24 * time.Hour)} {
			for _, url := range []string{right, wrong} {
				status, err := call(url, absurd)
				if wantReason(t, err, wire.Implausible); status != 400 || !errors.Is(err, interlock.ErrImplausibleToken) {
					t.Errorf("%d: %d, %v", absurd, status, err)
				}
			}
			if _, err := call(right, token(i)); err != nil {
				t.Errorf("after %d nobody gets in: %v", absurd, err)
			}
		}
	})
}

// TestAnUnsignedTokenLiesAMinuteAheadAtMost, or Options.MaxAhead. A signed one may be a day ahead.
func TestAnUnsignedTokenLiesAMinuteAheadAtMost(t *testing.T) {
	t.Parallel()
	work := func(context.Context, *wire.Passage) error { return nil }
	s := signer(t, "a", 'a', nil)
	for _, c := range []struct {
		name    string
		options *wire.Options
		by      *wire.Transport
		far, ok time.Duration
	}{
		{"default", nil, &wire.Transport{}, wire.DefaultMaxAhead + 30*time.Second, wire.DefaultMaxAhead - 30*time.Second},
		{"an hour", &wire.Options{MaxAhead: time.Hour}, &wire.Transport{}, time.Hour + time.Minute, time.Hour - time.Minute},
		{"signed", &wire.Options{Verifier: verifier(t, nil, "a")}, &wire.Transport{Signer: s, Audience: "bank"}, 0, interlock.MaxAhead - time.Hour},
	} {
		url, by := serve(t, work, c.options), client(t, c.by)
		call := func(lead time.Duration) error {
			_, _, err := post(wire.Under(t.Context(), grant("account/42", ahead(lead), bound), ""), by, url)
			return err
		}
		if err := call(c.ok); err != nil {
			t.Errorf("%s: %v ahead: %v", c.name, c.ok, err)
		}
		if c.far > 0 {
			wantReason(t, call(c.far), wire.Implausible)
		}
	}
}

// TestATokenOfTomorrowTakesAnOperator: the documented repair after a wrong token that is within the
// plausible range.
func TestATokenOfTomorrowTakesAnOperator(t *testing.T) {
	t.Parallel()
	c, err := redis.Dial(testbed.Redis(t).URL())
	ok(t, err)
	defer c.Close()
	store := fence.NewStore(redis.NewFence(c))
	url := serve(t, func(ctx context.Context, p *wire.Passage) error { return store.Enter(ctx, p, p.Name()) },
		&wire.Options{MaxAhead: 2 * interlock.MaxAhead}) // a day is the most
	by := client(t, &wire.Transport{})
	call := func(n interlock.Token) error {
		_, _, err := post(wire.Under(t.Context(), grant("account/42", n, bound), ""), by, url)
		return err
	}
	wantReason(t, call(ahead(interlock.MaxAhead+time.Hour)), wire.Implausible)
	ok(t, call(ahead(interlock.MaxAhead-time.Hour)))
	wantReason(t, call(token(1)), wire.Stale)
	_, err = store.Rebase(t.Context(), "account/42", token(0), "a token of tomorrow", "operator")
	ok(t, err)
	ok(t, call(token(1)))
}

// TestAStaleTokenIsRefused: the refusal has the entered token, and nothing is done.
func TestAStaleTokenIsRefused(t *testing.T) {
	t.Parallel()
	eachGuard(t, func(t *testing.T, work enter) {
		s := signer(t, "a", 'a', nil)
		url := serve(t, work, &wire.Options{Verifier: verifier(t, nil, "a")})
		by := client(t, &wire.Transport{Signer: s, Audience: "bank"})
		call := func(n int) (int, error) {
			status, _, err := post(wire.Under(t.Context(), grant("account/42", token(n), bound), ""), by, url)
			return status, err
		}
		for _, n := range []int{1, 1, 3} {
			if status, err := call(n); err != nil || status != 200 {
				t.Fatalf("%d %v", status, err)
			}
		}
		status, err := call(2)
		if stale, found := errors.AsType[*interlock.StaleTokenError](err); !found || status != 412 || *stale != (interlock.StaleTokenError{Resource: "account/42", Seen: token(3), Got: token(2)}) {
			t.Errorf("%d %v", status, err)
		}
		// The same text again, like a replay by an eavesdropper.
		text := sign(t, s, grant("account/42", token(2), bound), "bank")
		if _, _, err := post(wire.Carry(t.Context(), text), client(t, &wire.Transport{}), url); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("replayed: %v", err)
		}
	})
}
