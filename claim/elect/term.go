package elect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

type claim = interlock.Claim

// Term is a leadership, and an [interlock.Claim]: its token fences the leader's writes. Its
// Context ends with the term only; the context of the leader's function also ends with that of
// Run. It is safe for concurrent use.
//
// Proclaim, HandOver, Save and Load need Options.Values. They retry a bounded number of times,
// while ctx and the term last. Once a successor has begun, they return interlock.ErrStaleToken.
type Term struct {
	claim
	election  *Election
	yieldedTo string        // the nominee, if the candidate did not take office
	turn      chan struct{} // capacity 1: held by the writer; guards what follows
	token     interlock.Token
	record    record
}

// Proclaim replaces the data that observers see with this leadership: at most [MaxData] bytes.
// A term begins without data.
func (t *Term) Proclaim(ctx context.Context, data []byte) error {
	return t.write(ctx, "proclaim", func(ctx context.Context) error {
		return t.publish(ctx, func(r *record) { r.Data = slices.Clone(data) })
	})
}

// HandOver nominates the candidate whose identity is successor. It does not end the term: the
// leader's function must return for that. Then other elected candidates yield to successor.
// Each yields for at most Options.StandBack, and only while successor is seen waiting. If
// successor has crashed, the nomination costs that time. It also costs at most one TTL until
// successor's place in the queue expires.
//
// If the driver shows its queue and successor is not in it, the error is Retryable, because
// successor may still arrive. A later nomination replaces an earlier one.
func (t *Term) HandOver(ctx context.Context, successor string) error {
	const op = "hand over"
	if successor == "" || successor == t.election.options.Identity {
		return t.fail(op, interlock.Bug, fmt.Errorf("the successor %q must be another candidate", successor))
	}
	return t.write(ctx, op, func(ctx context.Context) error {
		waits, err := t.election.waits(ctx, t.Name(), successor)
		switch {
		case err != nil:
			return err
		case !waits:
			return t.fail(op, interlock.Retryable, fmt.Errorf("no candidate %q waits", successor))
		}
		return t.publish(ctx, func(r *record) { r.Nominee = successor })
	})
}

// Save stores data, at most [MaxData] bytes, for later terms under a key of 1 to 32 bytes
// without a slash. If it returns nil, the data is durable and no later term had begun. Then
// every later term's Load returns this data, or data saved after it. This depends on tokens
// alone, not on leases or clocks. It costs two writes.
func (t *Term) Save(ctx context.Context, key string, data []byte) error {
	return t.write(ctx, "save "+key, func(ctx context.Context) error {
		if err := cmp.Or(checkKey(key), checkData(data)); err != nil {
			return t.fail("save", interlock.Bug, err)
		}
		if err := t.put(ctx, savedName(key, t.Name()), data); err != nil {
			return err
		}
		// A successor writes its record before it loads anything. If the store accepts our
		// record after the data, no successor has begun.
		return t.publish(ctx, func(*record) {})
	})
}

// Load returns the data under key that this term saved. If it saved none, Load returns the data
// of the last term that did; nil means that there is none.
func (t *Term) Load(ctx context.Context, key string) (data []byte, err error) {
	const op = "load"
	if err := t.check(op); err != nil {
		return nil, err
	}
	if err := checkKey(key); err != nil {
		return nil, t.fail(op, interlock.Bug, err)
	}
	ctx, stop := join.Context(ctx, t.Context())
	defer stop()
	v, err := t.election.get(ctx, savedName(key, t.Name()))
	if err == nil && v.Token.Counter() > t.Token().Counter() {
		err = t.fail(op, interlock.Definite, &interlock.StaleTokenError{Resource: t.Name(), Seen: v.Token, Got: t.Token()})
	}
	if err != nil {
		return nil, err
	}
	return v.Data, nil
}

// write runs do while the term lasts; calls run one at a time.
func (t *Term) write(ctx context.Context, op string, do func(context.Context) error) error {
	if err := t.check(op); err != nil {
		return err
	}
	ctx, stop := join.Context(ctx, t.Context())
	defer stop()
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return t.fail(op, interlock.Definite, context.Cause(ctx))
	}
	return do(ctx)
}

// check returns an error if the operation is impossible or the term has ended.
func (t *Term) check(op string) error {
	switch {
	case t.election.options.Values == nil:
		return t.fail(op, interlock.Bug, errors.New("the election has no Values to store data in"))
	case t.Context().Err() != nil:
		return t.fail(op, interlock.Definite, context.Cause(t.Context()))
	case !t.Valid():
		return t.fail(op, interlock.Definite, interlock.ErrExpired)
	}
	return nil
}

func (t *Term) fail(op string, kind interlock.ErrorKind, err error) error {
	return t.election.driverName.New(op, t.Name(), kind, err)
}

// takeOffice writes the term's record, so that the store rejects later writes of former
// leaders. If the candidate must yield to a nominee, it returns errStoodBack instead.
func (t *Term) takeOffice(ctx context.Context) error {
	e := t.election
	if e.options.Values == nil {
		return nil
	}
	return t.write(ctx, "take office", func(ctx context.Context) error {
		v, err := e.get(ctx, recordName(t.Name()))
		if err != nil {
			return err
		}
		before, err := decode(v)
		if err != nil {
			return t.fail("take office", interlock.Definite, err)
		}
		if e.defersToOthers(ctx, t.Name(), before.Nominee, v.Token) {
			t.yieldedTo = before.Nominee
			return t.fail("take office", interlock.Retryable, errStoodBack)
		}
		return t.publish(ctx, func(r *record) { *r = record{} })
	})
}

// publish changes the record. If a change is not confirmed, t.record keeps the old one, and
// observers may see the change until the next one.
func (t *Term) publish(ctx context.Context, change func(*record)) error {
	next := t.record
	change(&next)
	text, err := next.encode()
	if err != nil {
		return t.fail("write record", interlock.Bug, err)
	}
	if err := t.put(ctx, recordName(t.Name()), text); err != nil {
		return err
	}
	t.record = next
	return nil
}

// put writes a value and retries.
//
// A request whose answer was lost may still arrive, after others with the same token. Writes
// after one in doubt therefore have a higher token: the term's with the next hand-over number,
// which no lock of an election uses.
func (t *Term) put(ctx context.Context, name string, data []byte) error {
	e, v := t.election, driver.Value{Data: data, Token: t.token, Source: t.Owner()}
	for failed := 1; ; failed++ {
		err := e.ask(ctx, "write value", name, func(ctx context.Context) error { return e.options.Values.Put(ctx, name, v) })
		if err != nil && interlock.Kind(err) == interlock.Uncertain && v.Token == t.token {
			next, ok := t.token.Next()
			if !ok {
				return t.fail("write", interlock.Uncertain, fmt.Errorf("too many writes of this term were in doubt, begin a new one: %w", err))
			}
			t.token = next
		}
		if err == nil || !worthRepeating(err) || failed == attempts || !retries.Wait(ctx, failed) {
			return err
		}
	}
}

// get reads a value and retries.
func (e *Election) get(ctx context.Context, name string) (v driver.Value, err error) {
	for failed := 1; ; failed++ {
		err = e.ask(ctx, "read value", name, func(ctx context.Context) error {
			v, err = e.options.Values.Get(ctx, name)
			return err
		})
		if err == nil || !worthRepeating(err) || failed == attempts || !retries.Wait(ctx, failed) {
			return v, err
		}
	}
}

// answer bounds one request to the values. They need not be in the same service as the lock,
// and the leader's lease is renewed meanwhile.
const answer = 30 * time.Second

// ask makes one request. If it is not answered in time, its outcome is unknown.
func (e *Election) ask(ctx context.Context, op, name string, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	err := request(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = e.driverName.New(op, name, interlock.Uncertain, err)
	}
	return err
}

// MaxData is the maximum length of data that a leader proclaims or saves, in bytes.
const MaxData = 32 << 10

// record is the value that a leader stores under the election's name, as JSON. Its token is the
// term's. A leader writes it before it leads: then the store rejects writes of every former
// leader, and their nominations end.
type record struct {
	Data    []byte `json:"data,omitempty"`
	Nominee string `json:"nominee,omitempty"`
}

// recordName and savedName return the names in Values. A key has no slash, so no two pairs of
// key and name share one.
func recordName(name string) string     { return "term/" + name }
func savedName(key, name string) string { return "saved/" + key + "/" + name }

// maxKey leaves room for savedName within driver.MaxName.
const maxKey = 32

func checkKey(key string) error {
	if key == "" || len(key) > maxKey || strings.Contains(key, "/") {
		return fmt.Errorf("the key %q must have 1 to %d bytes and no slash", key, maxKey)
	}
	return nil
}

func (r record) encode() ([]byte, error) {
	if err := checkData(r.Data); err != nil {
		return nil, err
	}
	if !utf8.ValidString(r.Nominee) {
		return nil, fmt.Errorf("the successor %q is not valid UTF-8", r.Nominee)
	}
	return json.Marshal(r)
}

func checkData(data []byte) error {
	if len(data) > MaxData {
		return fmt.Errorf("the data has %d bytes, at most %d are allowed", len(data), MaxData)
	}
	return nil
}

func decode(v driver.Value) (r record, err error) {
	if v.Token == 0 {
		return r, nil
	}
	if err := json.Unmarshal(v.Data, &r); err != nil {
		return r, fmt.Errorf("the record that %q wrote with token %d is not that of an election: %w", v.Source, v.Token, err)
	}
	return r, nil
}
