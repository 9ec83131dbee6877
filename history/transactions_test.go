package history_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// A step begins a transaction, or ends it if it is not the first of its name.
type step struct {
	name string
	ops  []history.ListOp
	end  history.Kind // OK if empty
}

func saw(key string, values ...int64) history.ListOp {
	return history.ListOp{Key: key, Read: values, Seen: true}
}

func rmw(key string, value int64, values ...int64) history.ListOp {
	return history.ListOp{Key: key, Append: value, Read: values, Seen: true}
}

func judgeSteps(t *testing.T, steps []step) (snapshot, serializable history.Verdict) {
	t.Helper()
	var text bytes.Buffer
	w, err := history.NewWriter(&text, history.Header{}, nil)
	testbed.OK(t, err)
	open := map[string]history.Call{}
	for _, s := range steps {
		if call, ok := open[s.name]; ok {
			kind := s.end
			if kind == "" {
				kind = history.OK
			}
			call.EndWith(history.Event{Kind: kind, Value: history.FormatListOps(s.ops)})
			continue
		}
		open[s.name] = w.Invoke(history.Event{Lane: s.name, Op: history.OpTransaction, Value: history.FormatListOps(s.ops)})
	}
	testbed.OK(t, w.Close())
	check := func(judge func(*history.Reader) (history.Verdict, error)) history.Verdict {
		r, err := history.NewReader(strings.NewReader(text.String()))
		testbed.OK(t, err)
		v, err := judge(r)
		testbed.OK(t, err)
		return v
	}
	return check(func(r *history.Reader) (history.Verdict, error) { return history.CheckSnapshotIsolation(r.Events()) }),
		check(func(r *history.Reader) (history.Verdict, error) { return history.CheckSerializable(r.Events()) })
}

func TestTransactionAnomalies(t *testing.T) {
	at := func(name string, ops ...history.ListOp) step { return step{name: name, ops: ops} }
	failed := func(name string, ops ...history.ListOp) step { return step{name, ops, history.Fail} }
	tests := map[string]struct {
		steps                  []step
		snapshot, serializable bool // it is allowed
	}{
		"in turn": {[]step{at("1"), at("1", rmw("x", 1)), at("2"), at("2", rmw("x", 2, 1)), at("3"), at("3", saw("x", 1, 2))}, true, true},
		"a read of the past while the writer runs": {[]step{at("1", rmw("x", 1)), at("2"), at("2", saw("x")), at("1", rmw("x", 1)),
			at("3"), at("3", saw("x", 1))}, true, true},
		"a read of the past": {[]step{at("1", rmw("x", 1)), at("1", rmw("x", 1)), at("2"), at("2", saw("x")), at("3"), at("3", saw("x", 1))}, false, false},
		"write skew": {[]step{at("1", rmw("x", 1)), at("2", rmw("y", 2)), at("1", rmw("x", 1), saw("y")), at("2", rmw("y", 2), saw("x")),
			at("3"), at("3", saw("x", 1), saw("y", 2))}, true, false},
		"a lost update that was read": {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("1", rmw("x", 1)), at("2", rmw("x", 2)),
			at("3"), at("3", saw("x", 1, 2))}, false, false},
		"a lost update": {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("1", rmw("x", 1)), at("2", rmw("x", 2)),
			at("3"), at("3", saw("x", 2))}, false, false},
		"a long fork": {[]step{at("1", rmw("x", 1)), at("2", rmw("y", 2)), at("3"), at("4"), at("3", saw("x", 1), saw("y")),
			at("4", saw("x"), saw("y", 2)), at("1", rmw("x", 1)), at("2", rmw("y", 2)), at("5"), at("5", saw("x", 1), saw("y", 2))}, false, false},
		"a fractured read": {[]step{at("1", rmw("x", 1), rmw("y", 2)), at("2"), at("2", saw("x", 1), saw("y")), at("1", rmw("x", 1), rmw("y", 2)),
			at("3"), at("3", saw("x", 1), saw("y", 2))}, false, false},
		"a fractured read that is the last one": {[]step{at("1", rmw("x", 1), rmw("y", 2)), at("2"), at("2", saw("x", 1), saw("y")), at("1", rmw("x", 1), rmw("y", 2))}, false, false},
		"a read of a part of the appends":       {[]step{at("1", rmw("x", 1), rmw("x", 2)), at("2"), at("2", saw("x", 1)), at("1", rmw("x", 1), rmw("x", 2))}, false, false},
		"a lost update that nobody reads":       {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("1", rmw("x", 1)), at("2", rmw("x", 2))}, false, false},
		"a lost update of which one is read": {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("3"), at("2", rmw("x", 2)), at("3", saw("x", 2)),
			at("1", rmw("x", 1))}, false, false},
		"a read of the past without the mark that it was read": {[]step{at("1", rmw("x", 1)), at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("2", rmw("x", 2, 1)),
			at("3"), at("3", history.ListOp{Key: "x", Read: []int64{1}})}, false, false},
		"appends of one in another order":         {[]step{at("1", rmw("x", 1), rmw("x", 2)), at("1", rmw("x", 1), rmw("x", 2)), at("2"), at("2", saw("x", 2, 1))}, false, false},
		"an element of two appends":               {[]step{at("1", rmw("x", 1)), at("1", rmw("x", 1)), at("2", rmw("x", 1)), at("2", rmw("x", 1, 1)), at("3"), at("3", saw("x", 1))}, false, false},
		"appends that nobody reads":               {[]step{at("1", rmw("x", 1)), at("2"), at("3", rmw("x", 2)), at("2", saw("x")), at("1", history.ListOp{Key: "x", Append: 1}), at("3", rmw("x", 2))}, true, true},
		"an append that is there twice":           {[]step{at("1", rmw("x", 1)), at("1", rmw("x", 1)), at("2"), at("2", saw("x", 1, 1))}, false, false},
		"reads in another order than the appends": {[]step{at("1", rmw("x", 1)), at("1", saw("y"), rmw("x", 1)), at("2"), at("2", saw("x", 1), saw("y"))}, true, true},
		"a dirty read":                            {[]step{at("1", rmw("x", 1)), at("2"), at("2", saw("x", 1)), failed("1")}, false, false},
		"a rollback":                              {[]step{at("1", rmw("x", 1)), failed("1"), at("2"), at("2", saw("x"))}, true, true},
		"two orders":                              {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("3"), at("4"), at("3", saw("x", 1, 2)), at("4", saw("x", 2))}, false, false},
		"an open end":                             {[]step{at("1", rmw("x", 1)), at("2"), at("2", saw("x", 1)), at("3"), at("3", saw("x", 1))}, true, true},
		"an open end that says it read":           {[]step{at("1", rmw("x", 1)), at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("3"), at("3", saw("x", 1, 2))}, true, true},
		"from nowhere":                            {[]step{at("1"), at("1", saw("x", 7))}, false, false},
		"two fast ones":                           {[]step{at("1", rmw("x", 1)), at("2", rmw("x", 2)), at("1", rmw("x", 1)), at("2", rmw("x", 2, 1)), at("3"), at("3", saw("x", 1, 2))}, true, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			snapshot, serializable := judgeSteps(t, test.steps)
			if snapshot.OK() != test.snapshot || serializable.OK() != test.serializable {
				t.Errorf("snapshot isolation: %v\nserializable: %v", snapshot, serializable)
			}
		})
	}
}
