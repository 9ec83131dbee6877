package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var _ driver.Breaker = (*Driver)(nil)

const (
	opBreak = "break"
	// keptBreaks is how many records of forced releases a namespace keeps.
	keptBreaks = 1000
)

// broken is the content of a record node of a forced release.
type broken struct {
	Name   text            `json:"name"`
	Owner  text            `json:"owner"`
	Reason text            `json:"reason"`
	By     text            `json:"by"`
	Token  interlock.Token `json:"token"`
}

// Break implements driver.Breaker: the holder's node is deleted and the record
// written in one transaction. It works on the nodes of other clients too. The
// thousand newest records of a namespace are kept.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	var none driver.BreakRecord
	if err := d.checkBreak(ctx, b); err != nil {
		return none, false, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return none, false, harmless(err)
	}
	if err := s.sync(ctx, opBreak, b.Name); err != nil {
		return none, false, harmless(err)
	}
	n, f, err := s.holder(ctx, b.Name)
	if err != nil || f == nil || ownerOf(n, f.data) != b.Owner || isUnconfirmed(n, f) {
		return none, false, harmless(err)
	}
	for range attempts {
		record, ok, err := s.breakNode(ctx, b, n, f)
		if !errors.Is(err, errNoRecords) {
			return record, ok, err
		}
		if err := d.makeRecords(ctx, s); err != nil {
			return none, false, harmless(err)
		}
	}
	return none, false, fail.New(opBreak, b.Name, interlock.Retryable, errNoRecords)
}

var errNoRecords = errors.New("the node of the records was deleted repeatedly")

func (d *Driver) checkBreak(ctx context.Context, b driver.Break) error {
	if err := d.layout.check(opBreak, b.Name); err != nil {
		return err
	}
	if err := b.Validate(); err != nil {
		return fail.New(opBreak, b.Name, interlock.Bug, err)
	}
	if ctx.Err() != nil {
		return notSent(ctx, opBreak, b.Name)
	}
	return nil
}

// holder reads the first in line; nil if there is none.
func (s *session) holder(ctx context.Context, name string) (node, *found, error) {
	lock := s.d.layout.lock(name)
	list, err := s.children(ctx, opBreak, name, lock)
	if err != nil {
		return node{}, nil, err
	}
	q := queueOf(list)
	if len(q) == 0 {
		return node{}, nil, nil
	}
	f, err := s.get(ctx, opBreak, name, lock+"/"+q[0].name)
	return q[0], f, err
}

// breakNode deletes exactly the node that was read. No contender passes the first one, so
// that node is the holder's as long as it exists.
func (s *session) breakNode(ctx context.Context, b driver.Break, n node, f *found) (driver.BreakRecord, bool, error) {
	c, d := contenderOf(n, f), s.d
	data := encode(broken{text(b.Name), text(b.Owner), text(b.Reason), text(b.By), c.Token})
	type reply struct {
		ops []zk.MultiResponse
		err error
	}
	r, err := ask(ctx, s, opBreak, b.Name, func(conn *zk.Conn) (reply, error) {
		ops, err := conn.Multi(
			&zk.DeleteRequest{Path: d.layout.lock(b.Name) + "/" + n.name, Version: f.stat.Version},
			&zk.CreateRequest{Path: d.layout.breaks() + "/b-", Data: data, Acl: d.options.ACL, Flags: zk.FlagSequence},
		)
		if len(ops) > 0 && errors.Is(err, zk.ErrNoNode) {
			return reply{ops, err}, nil
		}
		return reply{ops, nil}, err
	})
	switch {
	case errors.Is(err, zk.ErrBadVersion): // another client wrote into it
		return driver.BreakRecord{}, false, nil
	case err != nil:
		return driver.BreakRecord{}, false, err
	case r.err != nil && r.ops[0].Error != nil:
		return driver.BreakRecord{}, false, nil // it is gone
	case r.err != nil:
		return driver.BreakRecord{}, false, errNoRecords
	}
	record := driver.BreakRecord{Break: b, Token: c.Token, At: d.options.Now()}
	s.finishRecord(ctx, r.ops[1].String, &record)
	return record, true, nil
}

// finishRecord reads the servers' time of a record, and removes the oldest records beyond
// keptBreaks. The lock is broken already, so errors are ignored.
func (s *session) finishRecord(ctx context.Context, path string, record *driver.BreakRecord) {
	if f, err := s.get(ctx, opBreak, record.Name, path); err == nil && f != nil {
		record.At = time.UnixMilli(f.stat.Ctime)
	}
	list, err := s.records(ctx)
	if err != nil {
		return
	}
	for _, old := range list[min(len(list), keptBreaks):] {
		if s.remove(ctx, opBreak, record.Name, old) != nil {
			return
		}
	}
}

func (d *Driver) makeRecords(ctx context.Context, s *session) error {
	err := d.makeNode(ctx, s, d.layout.breaks(), zk.FlagPersistent)
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// records lists the paths of all records, the newest first.
func (s *session) records(ctx context.Context) ([]string, error) {
	at := s.d.layout.breaks()
	list, err := s.children(ctx, opBreak, "", at)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b string) int { return strings.Compare(b, a) })
	for i, name := range list {
		list[i] = at + "/" + name
	}
	return list, nil
}

// Breaks implements driver.Breaker. It reads one record after the other until it
// has enough.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	if name != "" && name != driver.BaseName {
		if err := d.layout.check(opBreak, name); err != nil {
			return nil, err
		}
	}
	s, err := d.current(ctx)
	if err != nil {
		return nil, harmless(err)
	}
	if err := s.sync(ctx, opBreak, name); err != nil {
		return nil, harmless(err)
	}
	paths, err := s.records(ctx)
	if err != nil {
		return nil, harmless(err)
	}
	var all []driver.BreakRecord
	for _, path := range paths {
		if len(all) >= limit {
			break
		}
		f, err := s.get(ctx, opBreak, name, path)
		if err != nil {
			return nil, harmless(err)
		}
		if record, ok := readBroken(f); ok && (name == "" || record.Name == name) {
			all = append(all, record)
		}
	}
	return all, nil
}

// readBroken parses a record. ok is false if there is no node, or if it is not ours.
func readBroken(f *found) (record driver.BreakRecord, ok bool) {
	if f == nil {
		return record, false
	}
	var b broken
	if err := json.Unmarshal(f.data, &b); err != nil || b.Owner == "" {
		return record, false
	}
	of := driver.Break{Name: string(b.Name), Owner: string(b.Owner), Reason: string(b.Reason), By: string(b.By)}
	return driver.BreakRecord{Break: of, Token: b.Token, At: time.UnixMilli(f.stat.Ctime)}, true
}
