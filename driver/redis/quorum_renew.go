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

// nodeAnswers are one node's answers for the leases of a round.
type nodeAnswers struct {
	numbers []int64 // nil if it did not answer
	vote    vote    // granted or young, by its uptime
	err     error
}

// extend renews leases on all nodes at once, all leases of a node in one pipeline.
func (q *Quorum) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions := make([]renewal.Extension, len(due))
	round := q.enter(due)
	defer q.leave(round)
	answers := q.renewAll(ctx, round)
	for i, h := range due {
		at := slices.Index(round, h)
		if at < 0 {
			extensions[i].Err = errReleased
			continue
		}
		extensions[i] = judge(answers, at)
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
func (q *Quorum) renewAll(ctx context.Context, round []*renewal.Holding) []nodeAnswers {
	batches := q.layout.renewals(chunks(q.layout, round, q.layout.held), q.options.TTL)
	answers := make([]nodeAnswers, len(q.nodes))
	asked := request{op: "renew"}
	var asking sync.WaitGroup
	for i, n := range q.nodes {
		if !n.mayAsk() {
			answers[i].err = problem(asked, interlock.Retryable, errNodeDown)
			continue
		}
		wait := n.ask(ctx, q.options.NodeTimeout, asked, quorumRenewScript, batches...)
		asking.Go(func() { answers[i] = q.readRound(n, wait, len(round)) })
	}
	asking.Wait()
	return answers
}

// readRound parses a node's answer for n leases.
func (q *Quorum) readRound(from *node, wait func() (results, error), n int) nodeAnswers {
	got, err := wait()
	a := nodeAnswers{vote: voteGranted}
	for i := range (n + batchSize - 1) / batchSize {
		size := min(batchSize, n-i*batchSize)
		numbers, err := integers(request{op: "renew"}, got, i, size+1, err)
		if err != nil {
			return nodeAnswers{err: err}
		}
		a.numbers = append(a.numbers, numbers[:size]...)
		a.vote = min(a.vote, from.came(time.Duration(numbers[size])*time.Second, q.options.RestartDelay))
	}
	return a
}

// judge returns the outcome of lease i.
func judge(answers []nodeAnswers, i int) renewal.Extension {
	r := renewalTally{nodes: len(answers)}
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		r.count(a.numbers[i], a.vote)
	}
	switch r.verdict() {
	case verdictKept:
		return renewal.Extension{Ours: true}
	case verdictLost:
		return renewal.Extension{}
	}
	return renewal.Extension{Err: noMajority(request{op: "renew"}, errs)}
}

func (q *Quorum) everyNode() []int {
	all := make([]int, len(q.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}
