package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/renewal"
)

var errReleased = errors.New("it was released meanwhile")

// nodeAnswer is one node's answer for one lease.
type nodeAnswer struct {
	number int64
	vote   vote // granted or young, by the node's uptime
	err    error
}

// extend renews leases on all nodes at once, all leases of a node in one pipeline. A lease that a
// node refuses, because the user may not use its key any more, fails no other.
func (q *Quorum) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions := make([]renewal.Extension, len(due))
	round := q.enter(due)
	defer q.leave(round)
	answers := q.renewAll(ctx, round)
	for i, h := range due {
		if !slices.Contains(round, h) {
			extensions[i].Err = errReleased
			continue
		}
		extensions[i] = judge(answers, h)
		if e := extensions[i]; e.Err == nil && !e.Ours {
			// Some nodes may have been locked again.
			q.release(request{name: h.Name, owner: h.Owner}, q.layout.prefix+h.Name, q.everyNode())
		}
	}
	return extensions
}

// enter registers the owners of a round. A release waits for its end.
func (q *Quorum) enter(due []*renewal.Holding) []*renewal.Holding {
	q.mu.Lock()
	defer q.mu.Unlock()
	var round []*renewal.Holding
	end := make(chan struct{})
	for _, h := range due {
		if !h.IsReleased() {
			round = append(round, h)
			q.round[h.Owner] = end
		}
	}
	return round
}

func (q *Quorum) leave(round []*renewal.Holding) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(round) > 0 {
		close(q.round[round[0].Owner])
	}
	clear(q.round)
}

// renewAll asks all nodes, and waits for those that are not skipped.
func (q *Quorum) renewAll(ctx context.Context, round []*renewal.Holding) []map[*renewal.Holding]nodeAnswer {
	answers := make([]map[*renewal.Holding]nodeAnswer, len(q.nodes))
	var asking sync.WaitGroup
	for i, n := range q.nodes {
		if n.mayAsk() {
			asking.Go(func() { answers[i] = q.renewOn(ctx, n, round) })
		}
	}
	asking.Wait()
	return answers
}

// renewOn asks a node.
func (q *Quorum) renewOn(ctx context.Context, n *node, round []*renewal.Holding) map[*renewal.Holding]nodeAnswer {
	asked := request{op: "renew"}
	bounded, cancel := context.WithTimeoutCause(ctx, q.options.NodeTimeout, errNodeSilent)
	defer cancel()
	parts, results, err := evalParts(bounded, n.conn, asked, quorumRenewScript, chunks(q.layout, round, q.layout.held),
		func(parts [][]*renewal.Holding) []batch { return q.layout.renewals(parts, q.options.TTL) })
	n.note(ctx, results, err)
	answers := make(map[*renewal.Holding]nodeAnswer, len(round))
	for i, part := range parts {
		numbers, err := integers(asked, results, i, len(part)+1, err)
		var v vote
		if err == nil {
			v = n.came(time.Duration(numbers[len(part)])*time.Second, q.options.RestartDelay)
		}
		for j, h := range part {
			a := nodeAnswer{vote: v, err: err}
			if err == nil {
				a.number = numbers[j]
			}
			answers[h] = a
		}
	}
	return answers
}

// judge returns the outcome of a lease.
func judge(answers []map[*renewal.Holding]nodeAnswer, h *renewal.Holding) renewal.Extension {
	asked := request{op: "renew"}
	r := renewalTally{nodes: len(answers)}
	var errs []error
	for _, of := range answers {
		a, sent := of[h]
		if !sent {
			a.err = problem(asked, interlock.Retryable, errNodeDown)
		}
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		r.count(a.number, a.vote)
	}
	switch r.verdict() {
	case verdictKept:
		return renewal.Extension{Ours: true}
	case verdictLost:
		return renewal.Extension{}
	}
	return renewal.Extension{Err: noMajority(asked, errs)}
}

func (q *Quorum) everyNode() []int {
	all := make([]int, len(q.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}
