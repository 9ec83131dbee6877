package redis

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
)

// Release releases name on all nodes if owner holds it; see driver.Advisory. It
// returns when a majority has confirmed; the other answers are read in the
// background, for up to a second. Where no answer confirms it, the lock expires.
func (q *Quorum) Release(ctx context.Context, name, owner string) error {
	lock, err := q.layout.key(name, owner)
	if err != nil {
		return err
	}
	asked := request{op: "release", name: name, owner: owner}
	q.held.Remove(owner)
	if ctx.Err() != nil {
		return unsent(asked, context.Cause(ctx))
	}
	// A renewal under way could lock a node again after it was released.
	select {
	case <-q.renewing(owner):
	case <-ctx.Done():
		return uncertain(asked, context.Cause(ctx))
	}
	return q.release(asked, lock, q.everyNode()).majority(ctx, len(q.nodes))
}

// renewing returns the end of owner's renewal under way.
func (q *Quorum) renewing(owner string) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if end := q.round[owner]; end != nil {
		return end
	}
	now := make(chan struct{})
	close(now)
	return now
}

// releasing is a release under way.
type releasing struct {
	asked   request
	answers chan error // one for each asked node
	nodes   int
}

// release starts to release asked.owner's lock on some nodes, by their wires if they are open.
func (q *Quorum) release(asked request, lock string, nodes []int) releasing {
	asked.op = "release"
	r := releasing{asked: asked, answers: make(chan error, len(nodes)), nodes: len(nodes)}
	byWire := q.newRound(asked, func(_ int, _ bool, err error) { r.answers <- releaseFailure(asked, err) })
	defer byWire.send(releaseWithin)
	command := appendCommand(make([]byte, 0, 256), "EVAL", quorumReleaseScript.source(), "1", lock, asked.owner)
	for _, i := range nodes {
		if byWire.add(i, true, command) {
			continue
		}
		answer := q.nodes[i].ask(q.ended, releaseWithin, asked, quorumReleaseScript,
			batch{keys: []string{lock}, args: []string{asked.owner}})
		work := func() {
			got, err := answer()
			if err == nil {
				err = failure(asked, got[0].Error())
			}
			r.answers <- err
		}
		if !q.spawn(work) {
			_, _ = answer() // ends with q
			r.answers <- closed(asked)
		}
	}
	return r
}

// releaseFailure classifies the outcome of a release by a wire.
func releaseFailure(asked request, err error) error {
	var answer Answer
	if errors.As(err, &answer) {
		return problem(asked, kindOf(string(answer)), answer)
	}
	return failure(asked, err)
}

// await waits for all asked nodes, or ctx.
func (r releasing) await(ctx context.Context) {
	for range r.nodes {
		select {
		case <-r.answers:
		case <-ctx.Done():
			return
		}
	}
}

// majority waits until a majority of all nodes has confirmed.
func (r releasing) majority(ctx context.Context, all int) error {
	var errs []error
	for confirmed := 0; confirmed < majorityOf(all); {
		if len(errs) > all-majorityOf(all) {
			return releaseErr(r.asked, errs)
		}
		select {
		case err := <-r.answers:
			if err != nil {
				errs = append(errs, err)
				continue
			}
			confirmed++
		case <-ctx.Done():
			return uncertain(r.asked, context.Cause(ctx))
		}
	}
	return nil
}

func releaseErr(asked request, errs []error) error {
	for _, err := range errs {
		if errors.Is(err, interlock.ErrClosed) {
			return err
		}
	}
	return noMajority(asked, errs)
}
