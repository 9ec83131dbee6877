package history

import (
	"fmt"
	"iter"
	"os"
)

// CheckFiles merges the histories in the files and checks their tokens.
func CheckFiles(paths ...string) (Report, error) { return InFiles(CheckTokens, paths...) }

// InFiles merges the histories in the files and lets a checker judge them, such as
// [CheckUpdates].
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
	c := checker{
		open:      map[callID]call{},
		names:     map[string]*name{},
		resources: map[string]*resource{},
	}
	for e, err := range events {
		if err == nil {
			c.report.Events++
			err = c.event(e)
		}
		if err != nil {
			return c.report, err
		}
	}
	c.finish()
	return c.report, nil
}

type checker struct {
	report    Report
	open      map[callID]call
	names     map[string]*name
	resources map[string]*resource
}

type callID struct {
	writer int
	seq    int64
}

// A call is under way. floor is what had returned when it was invoked.
type call struct {
	start Event
	floor mark
	epoch int // resource.rebased when it was invoked
}

func (c *checker) event(e Event) error {
	switch e.Kind {
	case Invoke:
		c.invoke(e)
	case OK, Fail, Info, Reject:
		return c.end(e)
	case Grant, HandOver:
		if _, open := c.open[callID{e.Writer, e.Cause}]; open {
			return c.end(e)
		}
		c.granted(c.name(e.Key), e, mark{})
	case State:
		if e.Op == OpMark {
			c.resource(e.Key).before(mark{token: e.Token, op: "mark of token", at: refOf(e)})
		}
	}
	return nil
}

func (c *checker) invoke(e Event) {
	k := call{start: e}
	switch e.Op {
	case OpAcquire:
		k.floor = c.name(e.Key).asked(e.Owner)
	case OpEnter, OpRead, OpWrite:
		k.floor, k.epoch = c.resource(e.Key).asked(e.Token)
	case OpRebase:
		k.epoch = c.resource(e.Key).rebase(e.Token)
	}
	c.open[callID{e.Writer, e.Seq}] = k
}

func (c *checker) end(e Event) error {
	id := callID{e.Writer, e.Cause}
	k, open := c.open[id]
	if !open {
		return notOpen(e)
	}
	delete(c.open, id)
	switch k.start.Op {
	case OpAcquire:
		c.endAcquire(k, e)
	case OpEnter, OpRead, OpWrite:
		c.endAccess(k, e)
	case OpRebase:
		c.endRebase(k, e)
	}
	return nil
}

// finish counts what is still open.
func (c *checker) finish() {
	for _, k := range c.open {
		switch k.start.Op {
		case OpAcquire, OpEnter, OpRead, OpWrite:
			c.report.Unknown++
		}
	}
}
