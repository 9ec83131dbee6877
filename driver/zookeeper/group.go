package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/group"
)

// mostUnderWay bounds the requests under way that create nodes, and those that delete nodes,
// before further ones wait and are sent together. More cost more processor time.
const mostUnderWay = 1

// mostTogether bounds the nodes that one request creates or deletes.
const mostTogether = 64

type (
	// entry is a request to create the node of a contender.
	entry struct {
		s    *session
		c    *contender
		base base
		over chan struct{} // contender.creating
	}
	// removal is a request to delete a node.
	removal struct {
		s          *session
		name, path string
	}
	entryCall   = group.Call[entry, []string]
	removalCall = group.Call[removal, struct{}]
)

func (d *Driver) groupRequests() {
	d.entries.Requests, d.entries.Calls = mostUnderWay, mostTogether
	d.entries.Alone, d.entries.Send, d.entries.Go = d.enterAlone, d.enterTogether, d.tasks.Go
	d.removals.Requests, d.removals.Calls = mostUnderWay, mostTogether
	d.removals.Alone, d.removals.Send, d.removals.Go = d.removeAlone, d.removeTogether, d.tasks.Go
}

// shared sends a request that may be sent with others.
func shared[Q, A any](ctx context.Context, g *group.Group[Q, A], op, name, key string, ask Q) (A, error) {
	answer, err := g.Do(ctx, key, ask)
	switch _, wrapped := errors.AsType[*interlock.Error](err); {
	case err == nil || wrapped:
	case errors.Is(err, interlock.ErrClosed):
		err = fail.Closed(op, name)
	case errors.Is(err, group.ErrUnsent):
		err = notSent(ctx, op, name)
	default:
		err = fail.Unanswered(ctx, op, name)
	}
	return answer, err
}

// enterTogether creates the nodes of contenders of different locks. If the server refuses one
// of them, the request has no effect, and each is sent alone.
func (d *Driver) enterTogether(calls []*entryCall) {
	first := calls[0].Ask
	var same, others []*entryCall
	for _, c := range calls {
		if d.hasLeft(c.Ask) {
			d.noteUnsent(c.Ask)
			c.Err = again(c.Ask.c.name, zk.ErrNoServer)
		} else if c.Ask.s == first.s && c.Ask.base.version == first.base.version && c.Ask.base.mark == first.base.mark {
			same = append(same, c)
		} else {
			others = append(others, c)
		}
	}
	if len(others) > 0 {
		defer d.enterTogether(others)
	}
	if len(same) == 0 {
		return
	}
	answers, err := ask(context.WithoutCancel(first.s.ctx), first.s, opAcquire, "", func(*zk.Conn) ([][]string, error) {
		responses, err := first.s.multi(same)
		if isRefused(err) && len(same) > 1 {
			return nil, err
		}
		answers := make([][]string, len(same))
		for i, c := range same {
			answers[i] = d.noteCreated(c.Ask, responses, i, err)
		}
		return answers, err
	})
	if isRefused(err) && len(same) > 1 {
		group.Each(same, d.enterTogether)
		return
	}
	for i, c := range same {
		if err == nil {
			c.Answer = answers[i]
			continue
		}
		if interlock.Kind(err) != interlock.Uncertain {
			d.noteUnsent(c.Ask) // no effect if the outcome is noted already
		}
		c.Err = fail.New(opAcquire, c.Ask.c.name, interlock.Kind(err), errors.Unwrap(err))
	}
}

// multi creates nodes if the base of tokens is unchanged. It writes the mark instead of
// checking it, because the answer to a write has the transaction's id.
func (s *session) multi(calls []*entryCall) ([]zk.MultiResponse, error) {
	b := calls[0].Ask.base
	ops := make([]any, 2, 2+len(calls))
	ops[0] = &zk.CheckVersionRequest{Path: s.d.layout.base(), Version: b.version}
	ops[1] = &zk.SetDataRequest{Path: s.d.layout.base() + "/" + b.mark, Version: -1}
	for _, c := range calls {
		ops = append(ops, s.creation(c.Ask.c, b))
	}
	return s.conn.Multi(ops...)
}

// creation returns the request that creates the node of a contender.
func (s *session) creation(c *contender, b base) *zk.CreateRequest {
	data := record{Owner: text(c.owner), Asked: s.d.options.Now().UTC(), TTL: s.ttl.Milliseconds(), scale: b.scale}.encode()
	return &zk.CreateRequest{Path: c.lock + "/_c_" + c.id + "-lock-", Data: data, Acl: s.d.options.ACL,
		Flags: zk.FlagEphemeral | zk.FlagSequence}
}

func (d *Driver) removeAlone(ctx context.Context, r removal) (none struct{}, err error) {
	return none, r.s.remove(ctx, opRelease, r.name, r.path)
}

// removeTogether deletes nodes, as enterTogether creates them.
func (d *Driver) removeTogether(calls []*removalCall) {
	s := calls[0].Ask.s
	ops := make([]any, len(calls))
	for i, c := range calls {
		if c.Ask.s != s {
			group.Each(calls, d.removeTogether)
			return
		}
		ops[i] = &zk.DeleteRequest{Path: c.Ask.path, Version: -1}
	}
	_, err := ask(context.WithoutCancel(s.ctx), s, opRelease, "", func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	if isRefused(err) && len(calls) > 1 {
		group.Each(calls, d.removeTogether)
		return
	}
	for _, c := range calls {
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			c.Err = fail.New(opRelease, c.Ask.name, interlock.Kind(err), errors.Unwrap(err))
		}
	}
}

func isRefused(err error) bool { return err != nil && kindOf(err) == interlock.Definite }
