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

// CheckTokens judges the tokens of a history by the rules of this package. It
// takes one pass, in time linear in the events and memory for the resources, the
// calls without a known end, and up to 1,024 grants of each name.
//
// It raises no false alarm. One call comes before another only if it had
// returned before the other was invoked; what overlaps may have happened in
// either order. A call without a known end may have been accepted, so its
// token may be what a guard has seen, but nothing is judged against it. A
// resource is not judged while its mark is being rebased, nor after a rebase
// whose outcome is not known. Once a rebase was done, its token is the floor,
// unless another was done at the same time.
//
// It misses little: a token granted twice is found if no more than 1,024 grants
// of the name lie between. An access that ends while a rebase is under way is
// not judged, also if the rebase then fails.
//
// The history must tell all that presented tokens to the resources, and, by a
// [State] event with [OpMark], the marks that they had before; otherwise a
// rejection seems to have no reason. Such a mark is a floor too. The error is that of events, or tells
// that a call ends which was not open.
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

// A call is under way. floor is what had returned when it was invoked.
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
