package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// releaseWithin bounds a node's confirmation of a release.
const releaseWithin = time.Second

var (
	errTooSlow  = errors.New("a majority granted it, but too little of its time was left")
	errTooYoung = errors.New("too many nodes have been up for less than the restart delay")
)

// nodeVote is one node's answer to an attempt.
type nodeVote struct {
	node    int
	vote    vote
	said    reply
	err     error
	unclear bool // the script must ask again
}

// attempt is one attempt to get a majority.
type attempt struct {
	tally     tally
	nodeVotes map[int]nodeVote // by node; those that arrived in time
}

// Acquire asks all nodes at once, until a majority grants r.Name to r.Owner.
// Between attempts it releases what it got and waits for a random time of up to
// half a second. See driver.Advisory.
func (q *Quorum) Acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	lock, err := q.layout.key(r.Name, r.Owner)
	if err != nil {
		return nil, err
	}
	asked := request{op: "acquire", name: r.Name, owner: r.Owner}
	if ctx.Err() != nil {
		return nil, unsent(asked, context.Cause(ctx))
	}
	q.held.StopEvents(r.Owner)
	known := ""
	for failed := 1; ; failed++ {
		lease, a, err := q.try(ctx, r, lock, failed == 1 && !r.NoWait)
		switch {
		case err != nil:
			return nil, err
		case lease != nil:
			return lease, nil
		}
		gaveBack := q.release(asked, lock, a.mayHold())
		said := a.holder()
		if r.NoWait {
			gaveBack.await(ctx)
			return nil, a.refusal(asked, said)
		}
		if r.Events.Waiting != nil && (failed == 1 || said.holder != known) {
			r.Events.Waiting(driver.Place{Ahead: -1, Holder: said.holder})
		}
		known = said.holder
		if err := fail.Pause(ctx, q.ended, r.Name, nil, polls.Delay(failed, rand.Float64())); err != nil {
			return nil, err
		}
	}
}

// try asks all nodes once. It returns as soon as the answers decide; later answers
// are read in the background. brief allows answers that do not name the holder.
func (q *Quorum) try(ctx context.Context, r driver.Request, lock string, brief bool) (driver.Lease, *attempt, error) {
	asked := request{op: "acquire", name: r.Name, owner: r.Owner}
	sent := boottime.Sent()
	a := &attempt{tally: tally{nodes: len(q.nodes)}, nodeVotes: map[int]nodeVote{}}
	nodeVotes, open := q.poll(asked, lock, brief)
	var errs []error
	for open && a.tally.decision() == decisionOpen {
		select {
		case p := <-nodeVotes:
			if p.unclear {
				open = q.askScript(p.node, asked, lock, nodeVotes)
				continue
			}
			a.tally.count(p.vote)
			a.nodeVotes[p.node] = p
			if p.err != nil {
				errs = append(errs, p.err)
			}
		case <-ctx.Done():
			return nil, a, uncertain(asked, context.Cause(ctx))
		case <-q.ended.Done():
			return nil, a, uncertain(asked, interlock.ErrClosed)
		}
	}
	if !open {
		return nil, a, closed(asked)
	}
	switch a.tally.decision() {
	case decisionSilent:
		q.release(asked, lock, a.mayHold())
		return nil, a, noMajority(asked, errs)
	case decisionWon:
		if boottime.Deadline(sent, q.held.TTL).Sub(boottime.Now()) > q.options.MinWork {
			return q.held.Add(r, sent), a, nil
		}
	}
	return nil, a, nil
}

// poll asks every node for its vote, by its wire if it is open. The channel takes all answers.
func (q *Quorum) poll(asked request, lock string, brief bool) (nodeVotes chan nodeVote, open bool) {
	nodeVotes, open = make(chan nodeVote, 2*len(q.nodes)), true
	r := q.newRound(asked, func(i int, done bool, err error) { nodeVotes <- q.readWire(i, asked, done, err) })
	defer r.send(q.options.NodeTimeout)
	command := appendCommand(make([]byte, 0, 128), "SET", lock, asked.owner, "NX", "PX", milliseconds(q.options.TTL))
	for i, n := range q.nodes {
		switch {
		case !n.mayAsk():
			nodeVotes <- nodeVote{node: i, err: problem(asked, interlock.Retryable, errNodeDown)}
		case r.add(i, brief, command):
		case open:
			open = q.askScript(i, asked, lock, nodeVotes)
		}
	}
	return nodeVotes, open
}

// readWire reads the answer to SET. Only the script can name the holder, extend what the owner
// already holds, or classify an error.
func (q *Quorum) readWire(i int, asked request, done bool, err error) nodeVote {
	switch {
	case done:
		return nodeVote{node: i, vote: voteGranted, said: reply{holder: asked.owner}}
	case err == nil, isAnswer(err):
		return nodeVote{node: i, unclear: true}
	}
	return nodeVote{node: i, err: failure(asked, err)}
}

// askScript asks a node for its vote by the client's connection; false if q is closed.
func (q *Quorum) askScript(i int, asked request, lock string, nodeVotes chan<- nodeVote) bool {
	n := q.nodes[i]
	q.lacksWire(n)
	answer := n.ask(q.ended, q.options.NodeTimeout, asked, quorumAcquireScript,
		batch{keys: []string{lock}, args: []string{asked.owner, milliseconds(q.options.TTL)}})
	if q.spawn(func() { nodeVotes <- q.read(i, asked, answer) }) {
		return true
	}
	_, _ = answer() // ends with q
	return false
}

// read waits for the vote of a node.
func (q *Quorum) read(i int, asked request, answer func() (results, error)) nodeVote {
	p := nodeVote{node: i}
	got, err := answer()
	if err != nil {
		p.err = err
		return p
	}
	fields, err := got[0].ToArray()
	if err == nil && len(fields) != 4 {
		err = errReply
	}
	if err == nil {
		err = p.said.parsePlain(fields[:3])
	}
	var seconds int64
	if err == nil {
		seconds, err = fields[3].AsInt64()
	}
	switch {
	case err != nil:
		p.err = failure(asked, err)
	case p.said.holder != asked.owner:
		p.vote = voteRefused
	default:
		p.vote = q.nodes[i].came(time.Duration(seconds)*time.Second, q.options.RestartDelay)
	}
	return p
}

// mayHold returns the nodes on which the attempt may have left a key.
func (a *attempt) mayHold() []int {
	var nodes []int
	for i := range a.tally.nodes {
		p, answered := a.nodeVotes[i]
		if !answered || p.vote != voteRefused && !errors.Is(p.err, errNodeDown) {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// holder returns the answer of the nodes that named the same other holder, the one
// named by most.
func (a *attempt) holder() reply {
	named, most := map[string]int{}, reply{}
	for _, p := range a.nodeVotes {
		if p.vote != voteRefused {
			continue
		}
		named[p.said.holder]++
		if n := named[p.said.holder]; n > named[most.holder] || most.holder == "" || p.said.holder == most.holder && p.said.left > most.left {
			most = p.said
		}
	}
	return most
}

// refusal returns the error of an attempt that is not repeated.
func (a *attempt) refusal(asked request, said reply) error {
	switch {
	case a.tally.decision() == decisionWon:
		return problem(asked, interlock.Retryable, errTooSlow)
	case said.holder == "":
		return problem(asked, interlock.Retryable, errTooYoung)
	}
	return said.heldError(asked.name)
}
