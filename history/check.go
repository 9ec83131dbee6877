package history

import (
	"fmt"
	"iter"
	"os"
)

// CheckFiles merges the histories in the files and checks their tokens.
func CheckFiles(paths ...string) (Report, error) { return InFiles(CheckTokens, paths...) }

// InFiles merges the histories in the files and runs a checker on them, such as [CheckUpdates].
func InFiles[R any](check func(iter.Seq2[Event, error]) (R, error), paths ...string) (none R, err error) {
	readers := make([]*Reader, 0, len(paths))
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return none, fmt.Errorf("check history: %w", err)
		}
		defer f.Close()
		r, err := NewReader(f)
		if err != nil {
			return none, fmt.Errorf("%s: %w", path, err)
		}
		readers = append(readers, r)
	}
	return check(Merge(readers...))
}

// CheckTokens judges the tokens of a history by the rules of this package. It takes one pass, in
// linear time. It needs memory for the resources, the calls without a known end, and up to 1,024
// grants of each name.
//
// It raises no false alarm:
//   - One call comes before another only if it had returned before the other was
//     invoked; calls that overlap may have happened in either order.
//   - A call without a known end may have been accepted: a guard may have seen its
//     token, but nothing is judged against it.
//   - A resource is not judged during a rebase of its mark, nor after a rebase with
//     an unknown outcome. The token of a completed rebase is the floor, unless
//     another completed at the same time.
//
// It finds a token granted twice if at most 1,024 grants of the name are in between.
// It does not judge an access that ends during a rebase, even if the rebase fails.
//
// The history must contain all calls that presented tokens to the resources. Their
// marks before the run are [State] events with [OpMark]; otherwise a rejection seems
// to have no reason. Such a mark is a floor too. The error is that of events, or
// reports the end of a call that was not open.
func CheckTokens(events iter.Seq2[Event, error]) (Report, error) {
	c := &checker{names: map[string]*name{}, resources: map[string]*resource{}}
	v, err := walk(events, &Verdict{}, c, OpAcquire, OpEnter, OpRead, OpWrite, OpRebase)
	c.report.Events = v.Events
	return c.report, err
}

type checker struct {
	report    Report
	names     map[string]*name
	resources map[string]*resource
}

// A call is an open call. floor is the highest mark that had returned at its invocation.
type call struct {
	start Event
	floor mark
	epoch int // resource.rebased when it was invoked
}

func (c *checker) began(e Event) call {
	k := call{start: e}
	switch e.Op {
	case OpAcquire:
		k.floor = c.name(e.Key).asked(e.Owner)
	case OpRebase:
		k.epoch = entry(c.resources, e.Key).rebase(e.Token)
	default:
		k.floor, k.epoch = entry(c.resources, e.Key).asked(e.Token)
	}
	return k
}

func (c *checker) ended(_, e Event, k call) {
	switch k.start.Op {
	case OpAcquire:
		c.endAcquire(k, e)
	case OpRebase:
		c.endRebase(k, e)
	default:
		c.endAccess(k, e)
	}
}

func (c *checker) stated(e Event) {
	switch {
	case e.Kind != State: // a grant without a call
		c.granted(c.name(e.Key), e, mark{})
	case e.Op == OpMark:
		entry(c.resources, e.Key).before(mark{token: e.Token, op: "mark of token", at: refOf(e)})
	}
}

func (c *checker) finished() {}
