package consul

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// Values keeps small values with the tokens of their writers, each in its own key. It
// implements driver.Values. A write requires that the key has not changed since its token was
// compared. The agent's clock decides what is too far in the future, and the caller's clock
// when a value was written.
type Values struct {
	client *client
	layout layout
	pace   pace
	now    func() time.Time
}

var _ driver.Values = (*Values)(nil)

// NewValues uses Address, Token, TLS, Prefix, Transport and Now of the options. It does not block.
func NewValues(options *Options) (*Values, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	return &Values{newClient(o), layout{o.Prefix}, paceOf(defaultTTL), o.Now}, nil
}

// Close closes idle connections.
func (v *Values) Close(context.Context) error {
	v.client.idle()
	return nil
}

// stored is a value as stored in its key.
type stored struct {
	Token   interlock.Token `json:"token"`
	Source  []byte          `json:"source"` // any bytes
	Written time.Time       `json:"written"`
	Data    []byte          `json:"data"`
}

func readValue(e entry) (driver.Value, error) {
	if !e.exists() {
		return driver.Value{}, nil
	}
	var s stored
	if err := json.Unmarshal(e.Value, &s); err != nil || !s.Token.Valid() {
		return driver.Value{}, fmt.Errorf("the key %q is not a value with a token", e.Key)
	}
	return driver.Value{Data: s.Data, Token: s.Token, Source: string(s.Source), Written: s.Written}, nil
}

func (v *Values) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, v.pace.request, errSlow)
}

// Put implements driver.Values with two requests, and two more for each other writer that
// was faster.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	const what = "put value"
	if err := v.check(ctx, what, name, value); err != nil {
		return err
	}
	for range attempts {
		e, err := v.read(ctx, what, name)
		if err != nil {
			return err
		}
		now, err := readValue(e)
		switch {
		case err != nil:
			return fail.New(what, name, interlock.Definite, err)
		case driver.Plausible(value.Token.Counter(), v.client.now(v.now)) != nil:
			return fail.New(what, name, interlock.Definite, fmt.Errorf("%w: %d is more than %v ahead of the agent's clock",
				interlock.ErrImplausibleToken, int64(value.Token), interlock.MaxAhead))
		case value.Token < now.Token:
			return fail.New(what, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: now.Token, Got: value.Token})
		}
		err = v.write(ctx, what, name, e, value)
		var moved *refusal
		if !errors.As(err, &moved) {
			return err
		}
	}
	return fail.New(what, name, interlock.Retryable, errOthers)
}

// check rejects values that the store never accepts.
func (v *Values) check(ctx context.Context, what, name string, value driver.Value) error {
	switch err := checkName(what, name); {
	case err != nil:
		return err
	case !value.Token.Valid():
		return refused(what, name, fmt.Errorf("%d is not a token", int64(value.Token)))
	case len(value.Data) > driver.MaxValue:
		return refused(what, name, fmt.Errorf("it has %d bytes, at most %d are allowed", len(value.Data), driver.MaxValue))
	case ctx.Err() != nil:
		return fail.Unsent(ctx, what, name)
	}
	return nil
}

func (v *Values) read(ctx context.Context, what, name string) (entry, error) {
	rctx, cancel := v.bounded(ctx)
	defer cancel()
	e, _, err := v.client.get(rctx, v.layout.value(name))
	if err != nil {
		return entry{}, unread(rctx, what, name, err)
	}
	return e, nil
}

func (v *Values) write(ctx context.Context, what, name string, over entry, value driver.Value) error {
	text, err := json.Marshal(stored{value.Token, []byte(value.Source), v.now().UTC().Round(0), value.Data})
	if err != nil {
		return refused(what, name, err)
	}
	rctx, cancel := v.bounded(ctx)
	defer cancel()
	if _, err = v.client.txn(rctx, op{Verb: "cas", Key: v.layout.value(name), Index: over.ModifyIndex, Value: text}); err != nil {
		return failed(rctx, what, name, err)
	}
	return nil
}

// Get implements driver.Values with one consistent read. Written is by the writer's clock.
func (v *Values) Get(ctx context.Context, name string) (driver.Value, error) {
	const what = "get value"
	if err := checkName(what, name); err != nil {
		return driver.Value{}, err
	}
	if ctx.Err() != nil {
		return driver.Value{}, fail.Unsent(ctx, what, name)
	}
	e, err := v.read(ctx, what, name)
	if err != nil {
		return driver.Value{}, err
	}
	value, err := readValue(e)
	if err != nil {
		err = fail.New(what, name, interlock.Definite, err)
	}
	return value, err
}

// Watch implements driver.Values by blocking queries of one key. If Consul does not answer
// it returns a Retryable error. A deletion is not reported: no holder of a token deletes.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	const what = "watch value"
	if err := checkName(what, name); err != nil {
		return err
	}
	var last driver.Value
	reported := false
	for index := uint64(0); ctx.Err() == nil; {
		e, next, err := v.await(ctx, what, name, index)
		if err != nil {
			return err
		}
		if next < index {
			next = 0 // Consul's index fell: it may be another cluster
		}
		index = next
		value, err := readValue(e)
		if err != nil {
			return fail.New(what, name, interlock.Definite, err)
		}
		// a wiped or restored store has earlier values
		if news := value.Token > last.Token || value.Token == last.Token && !same(value, last); (news || !reported) && ctx.Err() == nil {
			reported, last = true, value
			each(value)
		}
		backoff.Sleep(ctx, v.pace.least)
	}
	return fail.Unsent(ctx, what, name)
}

func same(a, b driver.Value) bool {
	return bytes.Equal(a.Data, b.Data) && a.Source == b.Source && a.Written.Equal(b.Written)
}

// await sends one blocking query; index 0 answers at once.
func (v *Values) await(ctx context.Context, what, name string, index uint64) (entry, uint64, error) {
	rctx, cancel := context.WithTimeoutCause(ctx, v.pace.quiet+v.pace.quiet/16+v.pace.request/4, errSlow)
	defer cancel()
	all, next, err := v.client.read(rctx, v.layout.value(name), query{index: index, wait: v.pace.quiet})
	switch {
	case ctx.Err() != nil:
		return entry{}, 0, fail.Unsent(ctx, what, name)
	case err != nil:
		return entry{}, 0, unread(rctx, what, name, err)
	case len(all) == 0:
		return entry{}, next, nil
	}
	return all[0], next, nil
}
