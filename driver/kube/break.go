package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// keepBreaks is how many records of forced releases a Lease keeps: the annotations
// of an object may have 256 KiB in all.
const keepBreaks = 16

// broken is a record as stored in the annotation.
type broken struct {
	Owner  string    `json:"owner"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Token  string    `json:"token,omitempty"`
	At     time.Time `json:"at"`
}

// Break implements driver.Breaker: it reads the Lease and writes it without its
// holder and with the record, in one update. At is by this process's clock, since
// Kubernetes does not report its time. A Lease keeps the last sixteen records, as
// long as it exists; other clients may remove them earlier.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	at, err := d.checkBreak(ctx, b)
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	for range attempts {
		o, _, err := d.read(ctx, "break", b.Name, at)
		if err != nil {
			return driver.BreakRecord{}, false, err
		}
		if o.holder() != b.Owner {
			return driver.BreakRecord{}, false, nil
		}
		record, err := d.breakOnce(ctx, b, o)
		if !moved(err) {
			return record, err == nil, err
		}
	}
	return driver.BreakRecord{}, false, problem("break", b.Name, interlock.Retryable, errOthers)
}

func (d *Driver) checkBreak(ctx context.Context, b driver.Break) (at string, err error) {
	if at, err = d.layout.locate("break", b.Name); err != nil {
		return "", err
	}
	if err := b.ValidateUTF8(); err != nil {
		return "", refused("break", b.Name, err)
	}
	if ctx.Err() != nil {
		return "", problem("break", b.Name, interlock.Definite, context.Cause(ctx))
	}
	return at, d.open("break", b.Name)
}

// breakOnce writes over o, if it is unchanged. It returns the error of a changed
// Lease as it is.
func (d *Driver) breakOnce(ctx context.Context, b driver.Break, o object) (driver.BreakRecord, error) {
	record := driver.BreakRecord{Break: b, Token: o.token(), At: d.options.Now().UTC().Truncate(time.Microsecond)}
	draft := o.draft(d.options.Namespace, o.lease.Name)
	if err := note(draft, record); err != nil {
		return driver.BreakRecord{}, problem("break", b.Name, interlock.Definite, err)
	}
	clearHolder(draft, d.options.Now())
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	after, err := d.client.update(rctx, draft)
	switch {
	case apierrors.IsConflict(err):
		return driver.BreakRecord{}, err
	case apierrors.IsNotFound(err):
		return driver.BreakRecord{}, problem("break", b.Name, interlock.Retryable, err)
	case err != nil:
		return driver.BreakRecord{}, failed(rctx, "break", b.Name, err)
	}
	d.learn(o.lease.Name, after)
	return record, nil
}

// note adds a record to a Lease, the newest last.
func note(l *coordination.Lease, r driver.BreakRecord) error {
	all, err := notes(l)
	if err != nil {
		return err
	}
	n := broken{Owner: r.Owner, Reason: r.Reason, By: r.By, At: r.At}
	if r.Token.Valid() {
		n.Token = r.Token.String()
	}
	all = append(all, n)
	text, err := json.Marshal(all[max(0, len(all)-keepBreaks):])
	l.Annotations[breaksKey] = string(text)
	return err
}

func notes(l *coordination.Lease) ([]broken, error) {
	text := l.Annotations[breaksKey]
	if text == "" {
		return nil, nil
	}
	var all []broken
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("the annotation %s of %s is damaged: %w", breaksKey, l.Name, err)
	}
	return all, nil
}

// Breaks implements driver.Breaker. Without a name it reads all Leases of the
// namespace.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	objects, err := d.broken(ctx, name)
	if err != nil {
		return nil, err
	}
	var all []driver.BreakRecord
	for _, o := range objects {
		of, ours := d.layout.name(o.lease.Name)
		if !ours {
			continue
		}
		records, err := notes(o.lease)
		if err != nil {
			return nil, problem("show breaks", of, interlock.Definite, err)
		}
		for _, r := range slices.Backward(records) {
			token, _ := interlock.ParseToken(r.Token) // none, if it had none
			all = append(all, driver.BreakRecord{Token: token, At: r.At,
				Break: driver.Break{Name: of, Owner: r.Owner, Reason: r.Reason, By: r.By}})
		}
	}
	slices.SortStableFunc(all, func(a, b driver.BreakRecord) int { return cmp.Compare(b.At.UnixMicro(), a.At.UnixMicro()) })
	return all[:min(len(all), max(limit, 0))], nil
}

// broken returns the Leases to search for records.
func (d *Driver) broken(ctx context.Context, name string) ([]object, error) {
	if ctx.Err() != nil {
		return nil, problem("show breaks", name, interlock.Definite, context.Cause(ctx))
	}
	if err := d.open("show breaks", name); err != nil {
		return nil, err
	}
	if name == "" {
		all, err := d.list(ctx)
		return all.objects, err
	}
	at, err := d.layout.locate("show breaks", name)
	if err != nil {
		return nil, err
	}
	o, _, err := d.read(ctx, "show breaks", name, at)
	if err != nil || !o.exists() {
		return nil, err
	}
	return []object{o}, nil
}
