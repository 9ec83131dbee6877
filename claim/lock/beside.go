package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

// MaxMetadata is the maximum length of the data that a holder stores beside its lock, in bytes.
const MaxMetadata = 4 << 10

// Prefixes of the names in Options.Values: the holder's data, and the latest request to
// release the lock.
const (
	describedName = "described/"
	askedName     = "asked/"
)

// A Holder describes the current holder of a lock.
type Holder struct {
	Owner string
	Token interlock.Token
	Data  []byte // stored by Claim.Describe; nil if none
}

// A ReleaseRequest is a request to release a lock.
type ReleaseRequest struct {
	By     string `json:"by"` // Options.Identity of the requester
	Reason string `json:"reason"`
}

// Describe stores data, at most [MaxMetadata] bytes, beside the lock while this claim lasts;
// see [Fenced.Show]. It needs Options.Values. A stale claim cannot replace the data of a later
// one. Repeating it after an Uncertain error converges.
func (c *Claim) Describe(ctx context.Context, data []byte) error {
	const op = "describe"
	l, name := c.h.locker, c.Name()
	if len(data) > MaxMetadata {
		return l.misuse(op, name, "the data has %d bytes, at most %d are allowed", len(data), MaxMetadata)
	}
	values, err := l.besides(op, name)
	if err != nil {
		return err
	}
	if !c.Valid() {
		return l.driverName.New(op, name, interlock.Definite, c.h.cause())
	}
	ctx, stop := join.Context(ctx, c.Context())
	defer stop()
	return values.Put(ctx, describedName+name, driver.Value{Data: data, Token: c.Token(), Source: c.Owner()})
}

// Show returns the holder of name and its data, or nil if the name is free. If the driver does
// not show its locks, the error is an [*interlock.UnmetError]. Data needs Options.Values.
func (f *Fenced) Show(ctx context.Context, name string) (*Holder, error) {
	holder, err := f.holder(ctx, "show", name)
	if err != nil || holder == nil {
		return nil, err
	}
	h := &Holder{Owner: holder.Owner, Token: holder.Token}
	if f.l.options.Values == nil {
		return h, nil
	}
	v, err := f.l.options.Values.Get(ctx, describedName+name)
	if err == nil && v.Token.Counter() == h.Token.Counter() {
		h.Data = v.Data
	}
	return h, err
}

// RequestRelease asks the current holder of name to release it, with a reason of at most
// [MaxMetadata] bytes. The holder receives the request by [Claim.ReleaseRequested] and decides;
// nothing is taken away. Both sides need Options.Values. If the name is free, the error is
// Definite.
func (f *Fenced) RequestRelease(ctx context.Context, name, reason string) error {
	const op = "ask for release"
	if len(reason) > MaxMetadata {
		return f.l.misuse(op, name, "the reason has %d bytes, at most %d are allowed", len(reason), MaxMetadata)
	}
	values, err := f.l.besides(op, name)
	if err != nil {
		return err
	}
	holder, err := f.holder(ctx, op, name)
	if err != nil {
		return err
	}
	if holder == nil || !holder.Token.Valid() {
		return f.l.driverName.New(op, name, interlock.Definite, errors.New("no holder with a token has it"))
	}
	data, err := json.Marshal(ReleaseRequest{By: f.l.options.Identity, Reason: reason})
	if err != nil {
		return f.l.misuse(op, name, "%w", err)
	}
	// The token is that of the holder, so a request to a former holder does not replace one
	// to this holder.
	return values.Put(ctx, askedName+name, driver.Value{Data: data, Token: holder.Token, Source: f.l.options.Identity})
}

// ReleaseRequested waits until a process has requested the release of c, and returns the latest
// request. A request from before the call counts too. If ctx or the claim ends first, the error
// is the cause. ReleaseRequested watches Options.Values and retries while they are unreachable.
func (c *Claim) ReleaseRequested(ctx context.Context) (ReleaseRequest, error) {
	const op = "await request for release"
	l, name := c.h.locker, c.Name()
	values, err := l.besides(op, name)
	if err != nil {
		return ReleaseRequest{}, err
	}
	ctx, stop := join.Context(ctx, c.Context())
	defer stop()
	for failed := 1; ; failed++ {
		ask, asked, err := c.watch(ctx, values)
		switch {
		case asked:
			return ask, nil
		case ctx.Err() != nil:
			return ReleaseRequest{}, l.driverName.New(op, name, ownCause(context.Cause(ctx)), context.Cause(ctx))
		case !worthRepeating(err):
			return ReleaseRequest{}, err
		}
		retries.Wait(ctx, failed)
	}
}

func (c *Claim) watch(ctx context.Context, values driver.Values) (ask ReleaseRequest, asked bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = values.Watch(ctx, askedName+c.Name(), func(v driver.Value) {
		if v.Token.Counter() == c.Token().Counter() && json.Unmarshal(v.Data, &ask) == nil {
			asked = true
			cancel()
		}
	})
	return ask, asked, err
}

// holder returns the holder of name, or nil if name is free.
func (f *Fenced) holder(ctx context.Context, op, name string) (*driver.Contender, error) {
	inspector, ok := f.l.driver.(driver.Inspector)
	if !ok {
		return nil, &interlock.UnmetError{Driver: string(f.l.driverName), Unmet: []string{"it must show who holds a lock (driver.Inspector)"}}
	}
	if name == "" || len(name) > driver.MaxName {
		return nil, f.l.misuse(op, name, "%w: it has %d bytes", interlock.ErrName, len(name))
	}
	state, err := inspector.Lock(ctx, name)
	return state.Holder, err
}

// besides returns the name of a value beside a lock.
func (l *locker) besides(op, name string) (driver.Values, error) {
	switch {
	case l.options.Values == nil:
		return nil, l.misuse(op, name, "there are no Options.Values to keep it in")
	case name == "" || len(name) > driver.MaxName-len(describedName):
		return nil, l.misuse(op, name, "%w: it has %d bytes", interlock.ErrName, len(name))
	}
	return l.options.Values, nil
}

func (l *locker) misuse(op, name, format string, args ...any) error {
	return l.driverName.New(op, name, interlock.Bug, fmt.Errorf(format, args...))
}
