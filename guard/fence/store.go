package fence

import (
	"context"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Write is a key and the value that it gets; see [driver.Write].
type Write = driver.Write

// Store guards data in a key-value store that also stores the marks. It protects keys that are
// written through it. It protects reads after an Enter if all writers of those keys enter the
// same resource. The data may change between the read and the next Enter; then that Enter
// fails.
//
// A store such as etcd keeps revisions of its keys. On it, Store reports to [observe.Fence]
// when a guarded write replaces a value that was written without the guard. That detects an
// unguarded write between an Enter and the next write of the same key under the same resource.
// It does not detect a deletion, nor a write before an Enter without writes. Redis and SQL
// databases keep no such revisions; use their grants and privileges to exclude other writers.
//
// It is safe for concurrent use if its driver is. It does not retry.
type Store struct {
	fence driver.Fence
	hooks *observe.Fence
}

// NewStore returns a Store on f, which a driver package provides. It logs writes that bypass
// the guard; see [Store.WithHooks].
func NewStore(f driver.Fence) *Store { return (&Store{fence: f}).WithHooks(nil) }

// WithHooks returns a Store on the same driver that reports to h; nil logs.
func (s *Store) WithHooks(h *observe.Fence) *Store {
	return &Store{fence: s.fence, hooks: h.WithDefaults()}
}

// Enter raises the mark of resource to the token of c and applies writes, both or neither, in
// one atomic step. Without writes it only raises the mark: call it so before the first read. If
// c has ended, it returns the cause; if the token is below the mark, an
// [interlock.StaleTokenError]. An Uncertain error means that both may have happened; a repeated
// call converges if the writes do.
func (s *Store) Enter(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, false, writes)
}

// EnterOnce is Enter that also rejects an equal token: each claim enters once. If a call
// returned an Uncertain error but succeeded, its repetition is rejected.
func (s *Store) EnterOnce(ctx context.Context, c interlock.Claim, resource string, writes ...driver.Write) error {
	return s.enter(ctx, c, resource, true, writes)
}

func (s *Store) enter(ctx context.Context, c interlock.Claim, resource string, strict bool, writes []driver.Write) error {
	if err := validateResource("enter", resource); err != nil {
		return err
	}
	if err := validateToken(resource, c.Token()); err != nil {
		return err
	}
	if !c.Valid() {
		return claimEnded(c, resource, nil)
	}
	raise := driver.Raise{Resource: resource, Token: c.Token(), Source: c.Owner(), Strict: strict, Bypassed: func(key string) {
		report.Now(s.hooks.Bypassed, observe.FenceBypassed{Resource: resource, Key: key, Owner: c.Owner(), Token: c.Token()})
	}}
	return s.fence.Enter(ctx, raise, writes...)
}

// Show returns the mark of resource; without a mark its Token is 0.
func (s *Store) Show(ctx context.Context, resource string) (driver.Mark, error) {
	if err := validateResource("show mark", resource); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Mark(ctx, resource)
}

// Rebase sets the mark of resource to exactly `to`, with the obligations of [Table.Rebase]:
// reason and by must not be blank, and are stored with the mark.
func (s *Store) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := validateResource("rebase", resource); err != nil {
		return driver.Mark{}, err
	}
	if err := validateRebase(resource, to, reason, by); err != nil {
		return driver.Mark{}, err
	}
	return s.fence.Rebase(ctx, resource, to, reason, by)
}

// Marks raises a resource's mark inside a SQL transaction. [Table] and [Column] implement it.
type Marks interface {
	// Enter returns an [interlock.StaleTokenError] if a higher token has entered resource.
	// Otherwise it raises the mark and keeps it locked until the transaction ends; the next
	// Enter waits for that. source names the holder, for people. After any error the
	// transaction must be rolled back.
	Enter(ctx context.Context, db driver.SQL, resource string, token interlock.Token, source string) error
}

// validateToken returns an error for a token that no lock issues.
func validateToken(resource string, token interlock.Token) error {
	if !token.Valid() {
		return failure.Bug("enter", resource, "%d is not a token that a lock issues", token)
	}
	return nil
}

func validateResource(op, resource string) error {
	return driver.CheckName(op, "a resource", resource, driver.MaxName)
}

func stale(resource string, seen, got interlock.Token) error {
	return &interlock.StaleTokenError{Resource: resource, Seen: seen, Got: got}
}

func implausible(op, resource string, token interlock.Token) error {
	return &interlock.Error{Op: op, Name: resource, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d is more than %v ahead of the store's clock", interlock.ErrImplausibleToken, token, interlock.MaxAhead)}
}

// Share reads the last committed marks of resources, and prevents other transactions from
// raising them until this transaction ends. Any number of transactions may share a mark. A
// writer uses it under a token that has entered before. If the mark equals its token, no other
// token enters before its transaction has ended. The result omits a resource without a mark,
// and Share does not prevent its first entry.
//
// Share waits for a transaction that has entered and not ended. On PostgreSQL it does not wait
// for a transaction that waits to enter, so overlapping shares can delay that one without
// bound. So share for a short time, and while the claim lasts. If a transaction shares a mark
// and then enters it, it can deadlock, which is Retryable.
func (t Table) Share(ctx context.Context, db driver.SQL, resources ...string) (map[string]interlock.Token, error) {
	return t.share(ctx, db, "", resources)
}

// ShareNow is [Table.Share] without waiting: the result also omits a mark that another
// transaction is raising. [Table.Show] distinguishes the two cases.
func (t Table) ShareNow(ctx context.Context, db driver.SQL, resources ...string) (map[string]interlock.Token, error) {
	return t.share(ctx, db, " skip locked", resources)
}

func (t Table) share(ctx context.Context, db driver.SQL, skip string, resources []string) (map[string]interlock.Token, error) {
	const op = "share mark"
	if len(resources) == 0 {
		return nil, nil
	}
	args := make([]any, len(resources))
	for i, r := range resources {
		if err := validateResource(op, r); err != nil {
			return nil, err
		}
		args[i] = r
	}
	m, err := t.open(op, resources[0], db)
	if err != nil {
		return nil, err
	}
	seen := map[string]interlock.Token{}
	query := `select resource, token from {marks} where resource in (?` + strings.Repeat(`, ?`, len(args)-1) + `) order by resource {share}` + skip
	err = m.Each(ctx, query, args, func(scan func(...any) error) error {
		var resource string
		var token interlock.Token
		err := scan(&resource, (*int64)(&token))
		seen[resource] = token
		return err
	})
	return seen, err
}
