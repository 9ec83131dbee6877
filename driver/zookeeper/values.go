package zookeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	opPut = "put value"
	opGet = "get value"

	// valuePatience bounds one request on a client that is not ours.
	valuePatience = 5 * time.Second
)

// Values keeps one small value for each name, with the token that it was written with. It
// implements driver.Values. A value is the node ROOT/interlock.values/NAME; the atomic step is a
// write conditional on the version that was read. A write cannot read the servers' clock, so the
// writer's clock decides which tokens are implausible.
type Values struct {
	conn *zk.Conn
	root string
	acl  []zk.ACL
	now  func() time.Time

	mu      sync.Mutex
	watches map[string]*nodeWatch // by path
}

// NewValues returns the values below root, such as "/interlock"; it sends nothing. The
// client must outlive the values, and the caller closes it. A request without a caller
// ends with its answer, or with the client. Connect it with [Dialer]: otherwise it may
// send nothing for more than a minute after a server restarts.
func NewValues(conn *zk.Conn, root string) *Values {
	return &Values{conn: conn, root: strings.TrimSuffix(root, "/"), acl: zk.WorldACL(zk.PermAll), now: time.Now, watches: map[string]*nodeWatch{}}
}

func (v *Values) path(name string) string { return v.root + "/" + reserved + "values/" + escape(name) }

// header is the first line of a value's node; the data follow.
type header struct {
	Token  interlock.Token `json:"token"`
	Source text            `json:"source"`
}

// Put stores a value unless a higher token has written; see driver.Values.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	if err := v.check(ctx, opPut, name); err != nil {
		return err
	}
	if err := v.checkValue(name, value); err != nil {
		return err
	}
	for range attempts {
		err := v.putOnce(ctx, name, value)
		switch {
		case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNodeExists):
		case errors.Is(err, zk.ErrNoNode):
			if err := v.prepare(ctx, name); err != nil {
				return harmless(err)
			}
		default:
			return err
		}
	}
	return fail.New(opPut, name, interlock.Retryable, errors.New("other clients kept writing it"))
}

func (v *Values) check(ctx context.Context, op, name string) error {
	if err := (layout{}).check(op, name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return notSent(ctx, op, name)
	}
	return nil
}

func (v *Values) checkValue(name string, value driver.Value) error {
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return fail.New(opPut, name, kind, fmt.Errorf(format, args...))
	}
	switch {
	case !value.Token.Valid():
		return refuse(interlock.Bug, "%d is not a token", int64(value.Token))
	case len(value.Data) > driver.MaxValue:
		return refuse(interlock.Bug, "the value has %d bytes, at most %d are allowed", len(value.Data), driver.MaxValue)
	case value.Token.Counter() > interlock.CounterAt(v.now().Add(interlock.MaxAhead)):
		return refuse(interlock.Definite, "%w: %d is more than %v ahead of the clock of this machine",
			interlock.ErrImplausibleToken, int64(value.Token), interlock.MaxAhead)
	}
	return nil
}

// putOnce reads, compares and writes. A stale read does no harm: the write is refused by the
// version.
func (v *Values) putOnce(ctx context.Context, name string, value driver.Value) error {
	was, stat, err := v.read(ctx, opPut, name)
	if err != nil {
		return harmless(err)
	}
	if value.Token < was.Token {
		return fail.New(opPut, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: was.Token, Got: value.Token})
	}
	data := append(encode(header{value.Token, text(value.Source)}), '\n')
	data = append(data, value.Data...)
	_, err = v.ask(ctx, opPut, name, func() (*found, error) {
		if stat == nil {
			_, err := v.conn.Create(v.path(name), data, zk.FlagPersistent, v.acl)
			return nil, err
		}
		_, err := v.conn.Set(v.path(name), data, stat.Version)
		return nil, err
	})
	return err
}

// prepare creates the nodes above a value's.
func (v *Values) prepare(ctx context.Context, name string) error {
	for _, path := range parents(v.path(name)) {
		_, err := v.ask(ctx, opPut, name, func() (*found, error) {
			return nil, makeNode(v.conn, path, zk.FlagPersistent, v.acl)
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

// Get reads the present value; see driver.Values.
func (v *Values) Get(ctx context.Context, name string) (driver.Value, error) {
	if err := v.check(ctx, opGet, name); err != nil {
		return driver.Value{}, err
	}
	if err := v.sync(ctx, name); err != nil {
		return driver.Value{}, harmless(err)
	}
	value, _, err := v.read(ctx, opGet, name)
	return value, harmless(err)
}

// sync makes our server catch up with its leader.
func (v *Values) sync(ctx context.Context, name string) error {
	_, err := v.ask(ctx, opGet, name, func() (*found, error) {
		_, err := v.conn.Sync(v.path(name))
		return nil, err
	})
	return err
}

// read reads a value and the state of its node; nil if there is none.
func (v *Values) read(ctx context.Context, op, name string) (driver.Value, *zk.Stat, error) {
	f, err := v.ask(ctx, op, name, func() (*found, error) {
		data, stat, err := v.conn.Get(v.path(name))
		return &found{data: data, stat: stat}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return driver.Value{}, nil, nil
	}
	if err != nil {
		return driver.Value{}, nil, err
	}
	value, err := readValue(op, name, f)
	return value, f.stat, err
}

func readValue(op, name string, f *found) (driver.Value, error) {
	line, data, cut := bytes.Cut(f.data, []byte{'\n'})
	var h header
	if err := json.Unmarshal(line, &h); err != nil || !cut || !h.Token.Valid() {
		return driver.Value{}, fail.New(op, name, interlock.Definite, errors.New("its node does not hold a value"))
	}
	return driver.Value{Data: data, Token: h.Token, Source: string(h.Source), Written: time.UnixMilli(f.stat.Mtime)}, nil
}

// ask sends one request, and waits until it is answered, ctx ends or valuePatience has passed.
// Without a connection it sends nothing.
func (v *Values) ask(ctx context.Context, op, name string, request func() (*found, error)) (*found, error) {
	type reply struct {
		found *found
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, valuePatience, errSlow)
	defer cancel()
	switch {
	case ctx.Err() != nil:
		return nil, notSent(ctx, op, name)
	case v.conn.State() != zk.StateHasSession:
		return nil, fail.New(op, name, interlock.Retryable, errNotConnected)
	}
	replies := make(chan reply, 1)
	go func() {
		f, err := request()
		replies <- reply{f, err}
	}()
	select {
	case r := <-replies:
		if r.err != nil {
			return nil, failed(op, name, r.err)
		}
		return r.found, nil
	case <-ctx.Done():
		return nil, fail.Unanswered(ctx, op, name)
	}
}
