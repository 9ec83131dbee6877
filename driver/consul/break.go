package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// maxBreaks is how many forced releases a namespace keeps, and trim how many of the
// oldest ones Break removes at most.
const (
	maxBreaks = 1000
	trim      = 8
)

// broken is the record of a forced release.
type broken struct {
	Name   []byte          `json:"name"` // any bytes
	Owner  string          `json:"owner"`
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	Token  interlock.Token `json:"token"`
	At     time.Time       `json:"at"`
}

// broken returns the key of a record: in the order of time.
func (l layout) broken(name string, at time.Time) string {
	return l.breaks() + driver.FormatPadded(max(0, at.UnixMicro())) + "/" + escape(name)
}

// Break implements driver.Breaker with three requests: two reads, and one transaction that
// deletes the key, if it is unchanged, and writes the record. It works on any holder, also
// on "session …", another client's, which notices in its own way. A namespace keeps its last
// thousand forced releases. At is by this process's clock. Reason and By are UTF-8.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	const what = "break"
	if err := d.checkBreak(ctx, what, b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, _, err := d.client.get(rctx, d.layout.lock(b.Name))
	if err != nil {
		return driver.BreakRecord{}, false, unread(rctx, what, b.Name, err)
	}
	held := describe(b.Name, e).Holder
	if held == nil || held.Owner != b.Owner {
		return driver.BreakRecord{}, false, nil
	}
	record := driver.BreakRecord{Break: b, Token: held.Token, At: d.options.Now().UTC().Round(0)}
	text, err := json.Marshal(broken{[]byte(b.Name), b.Owner, b.Reason, b.By, held.Token, record.At})
	if err != nil {
		return driver.BreakRecord{}, false, refused(what, b.Name, err)
	}
	ops := []op{{Verb: "check-session", Key: e.Key, Session: e.Session}, {Verb: "delete-cas", Key: e.Key, Index: e.ModifyIndex},
		{Verb: "set", Key: d.layout.broken(b.Name, record.At), Value: text}}
	old, err := d.records(rctx)
	if err != nil {
		return driver.BreakRecord{}, false, unread(rctx, what, b.Name, err)
	}
	for _, e := range old[:min(trim, max(0, len(old)-maxBreaks+1))] {
		ops = append(ops, op{Verb: "delete", Key: e.Key})
	}
	_, err = d.client.txn(rctx, ops...)
	var moved *refusal
	switch {
	case errors.As(err, &moved):
		return driver.BreakRecord{}, false, fail.New(what, b.Name, interlock.Retryable, err)
	case err != nil:
		return driver.BreakRecord{}, false, failed(rctx, what, b.Name, err)
	}
	return record, true, nil
}

func (d *Driver) checkBreak(ctx context.Context, what string, b driver.Break) error {
	if err := checkName(what, b.Name); err != nil {
		return err
	}
	if err := b.ValidateUTF8(); err != nil {
		return refused(what, b.Name, err)
	}
	return d.usable(ctx, what, b.Name)
}

// records returns all records of forced releases, the oldest first.
func (d *Driver) records(ctx context.Context) ([]entry, error) {
	all, _, err := d.client.read(ctx, d.layout.breaks(), query{recurse: true})
	return all, err
}

// Breaks implements driver.Breaker with one request, which reads all records.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	const what = "show forced releases"
	if err := d.usable(ctx, what, name); err != nil {
		return nil, err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	entries, err := d.records(rctx)
	if err != nil {
		return nil, unread(rctx, what, name, err)
	}
	var all []driver.BreakRecord
	for _, e := range slices.Backward(entries) {
		var b broken
		if err := json.Unmarshal(e.Value, &b); err != nil {
			return nil, fail.New(what, name, interlock.Definite, fmt.Errorf("the key %q is not the record of a forced release: %w", e.Key, err))
		}
		if of := string(b.Name); len(all) < limit && (name == "" || of == name) {
			all = append(all, driver.BreakRecord{Token: b.Token, At: b.At,
				Break: driver.Break{Name: of, Owner: b.Owner, Reason: b.Reason, By: b.By}})
		}
	}
	return all, nil
}
